//go:build !(linux && amd64)

package posture

import (
	"encoding/json"
	"io"
)

// KVMChild says that there is no probe for this machine. The device argument
// is not looked at.
func KVMChild(w io.Writer, _ string) error {
	return json.NewEncoder(w).Encode(kvmFigures{Unsupported: true})
}

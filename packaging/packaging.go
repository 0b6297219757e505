// Package packaging owns the systemd units of a Microvm host, as files for packagers and embedded for programs that install
// them. It knows nothing of what the units start.
package packaging

import "embed"

// Units holds microvm.slice, microvm-sandboxes.service and microvmd.service.
//
//go:embed *.slice *.service
var Units embed.FS

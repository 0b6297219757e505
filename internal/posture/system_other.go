//go:build !linux

package posture

import (
	"context"
	"errors"
	"os"
)

// LiveReader reads nothing of a machine that is not Linux: all is unknown.
func LiveReader() Reader {
	return Reader{Root: os.DirFS("/"), System: elsewhere{}, UID: os.Geteuid()}
}

type elsewhere struct{}

var (
	_           System = elsewhere{}
	errNotLinux        = errors.New("this is not Linux")
)

func (elsewhere) Run(context.Context, string, ...string) (string, error) { return "", errNotLinux }
func (elsewhere) Tun() error                                             { return errNotLinux }
func (elsewhere) Mount(string) (Mount, error)                            { return Mount{}, errNotLinux }

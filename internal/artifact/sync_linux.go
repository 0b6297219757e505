package artifact

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncTree puts a folder on disk. One syncfs instead of an fsync per file: a
// root file system has tens of thousands of them.
func syncTree(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(file.Fd())), file.Close())
}

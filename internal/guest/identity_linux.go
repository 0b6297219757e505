package guest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// ioctls of random(4), the same on amd64 and arm64.
const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
)

func setClock(conf guestwire.Configure) error {
	now := unix.NsecToTimespec(conf.TimeNS)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// stir mixes the host's entropy in and makes the kernel's generator start from
// it: writing to /dev/urandom alone would leave two clones alike.
func (i *identity) stir(conf guestwire.Configure) error {
	entropy := conf.Entropy[:len(conf.Entropy)/4*4]
	// struct rand_pool_info: bits, bytes, then the bytes.
	info := make([]byte, 8, 8+len(entropy))
	binary.NativeEndian.PutUint32(info[0:], uint32(len(entropy)*8)) //nolint:gosec // at most 4096 bytes
	binary.NativeEndian.PutUint32(info[4:], uint32(len(entropy)))   //nolint:gosec // at most 4096 bytes
	info = append(info, entropy...)
	if err := ioctl(i.random, rndAddEntropy, uintptr(unsafe.Pointer(&info[0]))); err != nil { //nolint:gosec // the ioctl takes a pointer
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := ioctl(i.random, rndReseedCRNG, 0); err != nil {
		return fmt.Errorf("reseed random numbers: %w", err)
	}
	return nil
}

func ioctl(file *os.File, request, argument uintptr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, argument)
	if errno != 0 {
		return errno
	}
	return nil
}

func setHostname(conf guestwire.Configure) error {
	if err := unix.Sethostname([]byte(conf.Hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	return nil
}

// nameFile is a file of /etc that says who the guest is.
type nameFile struct {
	name, text string
	mode       os.FileMode
}

// nameFiles makes all of them, with a new machine id from the kernel's fresh
// random numbers, in the form of machine-id(5).
func nameFiles(hostname string) ([]nameFile, error) {
	var id [16]byte
	if _, err := unix.Getrandom(id[:], 0); err != nil {
		return nil, fmt.Errorf("make machine id: %w", err)
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return []nameFile{
		{"hosts", "127.0.0.1\tlocalhost\n127.0.1.1\t" + hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n", 0o644},
		{"hostname", hostname + "\n", 0o644},
		{"machine-id", hex.EncodeToString(id[:]) + "\n", 0o444},
	}, nil
}

// replaceFile puts a new file in the place of whatever is there: at a later
// generation the guest may have put a FIFO or a link there.
func replaceFile(path, text string, mode os.FileMode) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err != nil {
		return err
	}
	p, err := openPlace(path)
	if err != nil {
		return err
	}
	defer p.close()
	s, err := stage(p, func(beside place) error {
		file, err := beside.open(unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL)
		if err != nil {
			return err
		}
		_, err = file.WriteString(text)
		return errors.Join(err, file.Chmod(mode), file.Close())
	})
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	defer s.drop()
	if err := s.commit(); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}

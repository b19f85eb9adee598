package debuginfod

import (
	"fmt"
	"os"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/rootfs"
)

// verify returns an error unless the file is an ELF file with the requested build-id.
func verify(f *os.File, id string) error {
	m, err := elfimage.Open(f, "the file")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if m.BuildID() != id {
		return fmt.Errorf("%w: the file has build-id %q", ErrRefused, m.BuildID())
	}
	return nil
}

// intact reports whether a cached file has the build-id of its folder. Other clients also write to the cache.
func intact(path, id string) bool {
	f, err := rootfs.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return verify(f, id) == nil
}

package spool

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// asOwner runs f with no more rights to files than their owner has: root may write anywhere.
func asOwner(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, its rights as well
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Capset(&header, &none[0])
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRemoveWithoutRights checks that a spool directory can be removed after its write permission was removed.
func TestRemoveWithoutRights(t *testing.T) {
	for name, modes := range map[string]struct{ dir, work os.FileMode }{
		"directory": {0o500, 0o700},
		"contents":  {0o700, 0o500},
		"both":      {0o400, 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), dirPrefix+"x")
			work := filepath.Join(path, workName)
			err := errors.Join(os.Mkdir(path, 0o700), os.Mkdir(work, 0o700), os.WriteFile(work+"/x", nil, 0o600),
				os.WriteFile(path+"/x.req", nil, 0o600), os.Chmod(work, modes.work), os.Chmod(path, modes.dir))
			if err != nil {
				t.Fatal(err)
			}
			asOwner(t, func() error { return removeUnused(path, true) })
			if exists(path) {
				t.Error("it is still there")
				_ = os.Chmod(path, 0o700)
			}
		})
	}
}

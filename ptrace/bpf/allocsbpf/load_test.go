package allocsbpf

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func needTracer(t *testing.T) {
	t.Helper()
	if err := Check(); errors.Is(err, unix.EPERM) || errors.Is(err, ErrUnsupported) && !errors.Is(err, unix.EACCES) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%+v", err)
	}
}

func TestLoad(t *testing.T) { needTracer(t) }

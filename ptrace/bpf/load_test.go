package bpf

import (
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

var errCannot = errors.New("cannot do it")

// program is a program that does nothing.
func program() *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{
		Name: "nothing", Type: ebpf.RawTracepoint, License: "Dual MIT/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	}
}

// TestLoader expects that each reason why programs cannot be loaded is an error with the caller's meaning.
func TestLoader(t *testing.T) {
	t.Parallel()
	l := Loader{Read: NotCompiled, Unsupported: errCannot, Release: "6.6"}
	if _, err := l.Spec(nil); !errors.Is(err, errCannot) || !strings.Contains(err.Error(), runtime.GOARCH) {
		t.Errorf("programs that were not compiled: %v", err)
	}
	l.Read = func() (*ebpf.CollectionSpec, error) {
		return &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"one": program(), "two": program()}}, nil
	}
	if _, err := l.Spec(map[string]any{"absent": uint32(1)}); err == nil {
		t.Error("a variable that is absent was set")
	}
	spec, err := l.Spec(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Load(spec, "three"); err == nil {
		t.Error("a program that is absent was loaded")
	}
	if spec, err = l.Spec(nil); err != nil {
		t.Fatal(err)
	}
	c, err := l.Load(spec, "two")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errCannot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(c.Programs) != 1 || c.Programs["two"] == nil {
		t.Errorf("loaded %v", c.Programs)
	}
}

// TestLoadErrors expects the words of refusals.
func TestLoadErrors(t *testing.T) {
	t.Parallel()
	l := Loader{Unsupported: errCannot, Release: "6.6"}
	for _, c := range []struct {
		err         error
		unsupported bool
		denied      bool
		text        string
	}{
		{unix.EPERM, false, true, "CAP_BPF and CAP_PERFMON are missing"},
		{unix.EINVAL, true, false, "which takes Linux 6.6 or later"},
		{unix.ENOMEM, false, false, "load a program in the kernel"},
	} {
		err := l.Error("load a program", c.err)
		if errors.Is(err, errCannot) != c.unsupported || errors.Is(err, fs.ErrPermission) != c.denied ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

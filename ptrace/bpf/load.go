package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// Loader loads the BPF programs of one package.
type Loader struct {
	// Read reads the compiled programs. On an architecture for which they were not compiled, it is the function NotCompiled.
	Read func() (*ebpf.CollectionSpec, error)
	// Unsupported is the error if the kernel, the architecture, or the environment of this process does not support
	// the programs.
	Unsupported error
	// Release is the first Linux release with all features that the programs need.
	Release string
	// HostPIDs means that this process passes process ids to the programs, so it must be in the host's PID namespace.
	HostPIDs bool
}

var errNotCompiled = errors.New("not compiled")

// NotCompiled is Loader.Read on an architecture for which the programs were not compiled.
func NotCompiled() (*ebpf.CollectionSpec, error) { return nil, errNotCompiled }

// Spec returns the programs, with their variables set to the given values (by name). The caller may change the sizes of
// their BPF maps before it calls Load.
func (l *Loader) Spec(variables map[string]any) (*ebpf.CollectionSpec, error) {
	spec, err := l.Read()
	if errors.Is(err, errNotCompiled) {
		return nil, fmt.Errorf("%w: architecture %s", l.Unsupported, runtime.GOARCH)
	}
	if err != nil {
		return nil, fmt.Errorf("read the programs for the kernel: %w", err)
	}
	if l.HostPIDs {
		if err := HostPIDs(); err != nil {
			return nil, fmt.Errorf("%w: %w", l.Unsupported, err)
		}
	}
	for name, value := range variables {
		variable := spec.Variables[name]
		if variable == nil {
			return nil, fmt.Errorf("the programs for the kernel have no variable %s", name)
		}
		if err := variable.Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return spec, nil
}

// Load loads the named programs and all BPF maps. The error wraps Unsupported, or fs.ErrPermission if a privilege is
// missing.
func (l *Loader) Load(spec *ebpf.CollectionSpec, programs ...string) (*ebpf.Collection, error) {
	c, err := NewCollection(spec, programs...)
	if err != nil {
		return nil, l.Error("load a program", err)
	}
	return c, nil
}

// Error returns the result of LoadError, with the fields Unsupported and Release of the loader as its parameters.
func (l *Loader) Error(what string, err error) error {
	return LoadError(l.Unsupported, what, l.Release, err)
}

// NewCollection loads the named programs and all BPF maps. It returns the kernel's error as it is.
func NewCollection(spec *ebpf.CollectionSpec, programs ...string) (*ebpf.Collection, error) {
	// Before Linux 5.11, BPF maps and programs count as locked memory. If this process may not raise the limit of locked
	// memory, the load below may fail.
	if err := rlimit.RemoveMemlock(); err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	wanted := make(map[string]*ebpf.ProgramSpec, len(programs))
	for _, name := range programs {
		if wanted[name] = spec.Programs[name]; wanted[name] == nil {
			return nil, fmt.Errorf("there is no program %s for the kernel", name)
		}
	}
	spec.Programs = wanted
	return ebpf.NewCollection(spec)
}

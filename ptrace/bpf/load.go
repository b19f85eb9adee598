package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// Loader loads the programs of one package.
type Loader struct {
	// Read reads the compiled programs, NotCompiled where there are none.
	Read func() (*ebpf.CollectionSpec, error)
	// Unsupported is the error if the kernel, the architecture, or the place where this process runs cannot do it.
	Unsupported error
	// Release is the first release of Linux with all that the programs need.
	Release string
	// HostPIDs means that user space gives the programs ids of processes.
	HostPIDs bool
}

var errNotCompiled = errors.New("not compiled")

// NotCompiled is Loader.Read on an architecture for which the programs were not compiled.
func NotCompiled() (*ebpf.CollectionSpec, error) { return nil, errNotCompiled }

// Spec returns the programs with values of their variables, by name. The caller may then change sizes of tables.
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

// Load loads programs by name, and all tables. The error is Unsupported, or fs.ErrPermission if a privilege is missing.
func (l *Loader) Load(spec *ebpf.CollectionSpec, programs ...string) (*ebpf.Collection, error) {
	c, err := NewCollection(spec, programs...)
	if err != nil {
		return nil, l.Error("load a program", err)
	}
	return c, nil
}

// Error words a refusal of the kernel to do something, such as "load a program".
func (l *Loader) Error(what string, err error) error {
	return LoadError(l.Unsupported, what, l.Release, err)
}

// NewCollection loads programs by name, and all tables. It does not word the kernel's error.
func NewCollection(spec *ebpf.CollectionSpec, programs ...string) (*ebpf.Collection, error) {
	// Before Linux 5.11, tables and programs count as locked memory. A missing right to raise its limit shows at the load.
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

//go:build !amd64 && !arm64

package probe

import (
	"github.com/cilium/ebpf"

	"pg_stat_backtrace/ptrace/bpf"
)

// These have values, so that the package can be compiled.
const (
	registerWords = 1
	statusWords   = 1
	threadPointer = -1
)

func loadProbe() (*ebpf.CollectionSpec, error) { return bpf.NotCompiled() }

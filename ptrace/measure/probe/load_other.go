//go:build !amd64 && !arm64

package probe

import (
	"github.com/cilium/ebpf"

	"pg_stat_backtrace/ptrace/bpf"
)

// The package needs values to compile on this architecture. They are not used.
const (
	registerWords = 1
	statusWords   = 1
	threadPointer = -1
)

func loadProbe() (*ebpf.CollectionSpec, error) { return bpf.NotCompiled() }

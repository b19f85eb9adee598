//go:build !amd64

package allocs

import (
	"github.com/cilium/ebpf"

	"pg_stat_backtrace/ptrace/bpf"
)

func loadAllocs() (*ebpf.CollectionSpec, error) { return bpf.NotCompiled() }

//go:build !amd64

package clusterbpf

import (
	"github.com/cilium/ebpf"

	"pg_stat_backtrace/ptrace/bpf"
)

func loadCluster() (*ebpf.CollectionSpec, error) { return bpf.NotCompiled() }

//go:build !amd64

package sampler

import (
	"github.com/cilium/ebpf"

	"pg_stat_backtrace/ptrace/bpf"
)

func loadSampler() (*ebpf.CollectionSpec, error) { return bpf.NotCompiled() }

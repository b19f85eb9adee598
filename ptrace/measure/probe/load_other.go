//go:build !amd64 && !arm64

package probe

import "github.com/cilium/ebpf"

const (
	supported     = false
	registerWords = 1
	statusWords   = 1
	threadPointer = -1
)

func loadProbe() (*ebpf.CollectionSpec, error) { return nil, ErrUnsupported }

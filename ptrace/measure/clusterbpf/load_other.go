//go:build !amd64

package clusterbpf

import (
	"fmt"
	"runtime"
)

// load refuses: the programs copy the registers of x86_64.
func load(*Server, *Options, int) (objects, error) {
	return objects{}, fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
}

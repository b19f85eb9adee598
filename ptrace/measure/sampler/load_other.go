//go:build !amd64

package sampler

import (
	"fmt"
	"runtime"
)

const supported = false

func load(int, int) (objects, error) {
	return objects{}, fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
}

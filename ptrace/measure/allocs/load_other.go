//go:build !amd64

package allocs

import (
	"fmt"
	"runtime"
)

func load(config) (objects, error) {
	return objects{}, fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
}

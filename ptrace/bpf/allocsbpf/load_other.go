//go:build !amd64

package allocsbpf

import (
	"fmt"
	"runtime"
)

func load(Config) (objects, error) {
	return objects{}, fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
}

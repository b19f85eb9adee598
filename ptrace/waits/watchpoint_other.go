//go:build !amd64

package waits

import "fmt"

// tryWatchpoint returns ErrUnsupported.
func tryWatchpoint() error {
	return fmt.Errorf("%w: watchpoints are used on x86_64 only", ErrUnsupported)
}

// openWatchpoint returns ErrUnsupported: the instructions of this architecture are not decoded.
func openWatchpoint(_ *procs, _ Info, _ int) (Provider, error) { return nil, tryWatchpoint() }

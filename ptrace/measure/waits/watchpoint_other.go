//go:build !amd64

package waits

// tryWatchpoint returns ErrUnsupported.
func tryWatchpoint() error {
	return impossiblef("watchpoints are used on x86_64 only")
}

// openWatchpoint returns ErrUnsupported: the instructions of this architecture are not decoded.
func openWatchpoint(_ *procs, _ Info, _ int) (Provider, error) { return nil, tryWatchpoint() }

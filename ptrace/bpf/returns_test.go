package bpf

import "testing"

// TestFiltersReturns expects that only kernels with the fault count.
func TestFiltersReturns(t *testing.T) {
	for release, want := range map[string]bool{
		"6.10.14": false, "6.11.0": true, "6.11.0-29-generic": true, "6.12.0-55.el10.x86_64": true, "6.12.13": true,
		"6.12.14": false, "6.12.48+deb13-amd64": false, "6.13.2": true, "6.13.3-arch1": false, "6.13-rc1": true,
		"6.14.0": false, "6.8.0": false, "7.0.1": false, "5.11.0": false, "": false, "unknown": false,
	} {
		if got := filtersReturns(release); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}

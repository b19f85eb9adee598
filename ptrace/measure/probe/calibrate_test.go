package probe

import (
	"errors"
	"io/fs"
	"runtime"
	"sync"
	"testing"
)

func TestCalibrateSteppedCostsMore(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("nothing is measured on this architecture")
	}
	c, err := Calibrate()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a hit costs %s emulated, %s single-stepped", c.Emulated, c.Stepped)
	if c.Emulated <= 0 || c.Stepped <= c.Emulated {
		t.Errorf("a single-stepped hit costs %s, an emulated one %s", c.Stepped, c.Emulated)
	}
}

// TestCalibrateAtOnce: one caller does not disturb another.
func TestCalibrateAtOnce(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("nothing is measured on this architecture")
	}
	calls := 0
	var first sync.WaitGroup
	first.Go(func() {
		for range 5 {
			if _, err := Calibrate(); err == nil {
				calls++
			}
		}
	})
	for range 5 {
		_, err := Calibrate()
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, ErrUnsupported) {
			t.Error(err)
		}
	}
	first.Wait()
	t.Logf("%d calls at the same time", calls)
}

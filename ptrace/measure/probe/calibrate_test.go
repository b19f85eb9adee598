package probe

import (
	"errors"
	"io/fs"
	"math"
	"runtime"
	"sync"
	"testing"
)

func TestCalibrateSteppedCostsMore(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("calls are not traced on this architecture, so their cost is not measured")
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
		t.Skip("calls are not traced on this architecture, so their cost is not measured")
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

// TestCalibrateLoadsOnce: the kernel verifies the program only once for a calibration. The kernel numbers programs in
// the order in which they are loaded. Other processes may load programs at the same time, so the least number counts.
func TestCalibrateLoadsOnce(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("calls are not traced on this architecture, so their cost is not measured")
	}
	number := func() int {
		p, err := Load(Config{Probes: []Probe{{}}, Processes: 1})
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
			t.Skipf("this host cannot run the programs: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		info, err := p.program.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, ok := info.ID()
		if !ok {
			t.Skip("this kernel gives programs no ids (before Linux 4.13)")
		}
		return int(id)
	}
	number() // also loads programs that try features of the kernel
	least := math.MaxInt
	for range 20 {
		before := number()
		if _, err := Calibrate(); err != nil {
			t.Fatal(err)
		}
		if least = min(least, number()-before-1); least == 1 {
			return
		}
	}
	t.Errorf("a calibration loads %d programs", least)
}

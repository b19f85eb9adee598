package observe

import (
	"encoding/binary"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEventStaysEnabled: the event that a running thread is sampled by does not switch itself off, which hangs Linux
// 6.17, and yet takes one sample.
func TestEventStaysEnabled(t *testing.T) {
	needSampling(t)
	s, err := openSampler(started(t, "sh", "-c", "while :; do :; done"))
	if err != nil {
		t.Skip(err)
	}
	defer s.close()
	if err := s.enable(); err != nil {
		t.Fatal(err)
	}
	const enough = 50 * samplePeriod
	var count [8]byte
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := unix.Read(s.fd, count[:]); err != nil {
			t.Fatal(err)
		}
		ran := time.Duration(binary.NativeEndian.Uint64(count[:]))
		if ran >= enough {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the event has counted %v of the thread's time", ran)
		}
	}
	samples := 0
	for p := s.ring[len(s.ring)/(1+ringPages):][:s.meta().Data_head]; len(p) > 0; {
		if binary.NativeEndian.Uint32(p) == unix.PERF_RECORD_SAMPLE {
			samples++
		}
		p = p[binary.NativeEndian.Uint16(p[6:]):]
	}
	if samples != 1 {
		t.Errorf("%d samples in %v", samples, enough)
	}
	if taken, err := s.take(); err != nil || taken.sp == 0 || len(taken.stack) == 0 {
		t.Errorf("%+v, %v", taken, err)
	}
}

// started starts a program that ends with the test.
func started(t *testing.T, name string, arguments ...string) int {
	t.Helper()
	c := exec.Command(name, arguments...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

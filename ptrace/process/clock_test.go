package process

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestParseBootOffset(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic 5 0\nboottime -3 500000000\n":                             -2500 * time.Millisecond,
		"1 5 0\n7 86400 1\n":                                                 24*time.Hour + 1,
	} {
		if got, err := ParseBootOffset(text); got != want || err != nil {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "monotonic 0 0\n", "boottime 1\n", "boottime x 0\n", "boottime 0 -1\n", "boottime 0 1000000000\n",
		"boottime 9223372036 0\n", "boottime -9223372036854775808 0\n",
	} {
		if got, err := ParseBootOffset(text); !errors.Is(err, ErrFormat) || got != 0 {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

// TestBootOffset checks that a process in a time namespace reads its own start time later by the offset.
func TestBootOffset(t *testing.T) {
	if _, err := BootOffset(1 << 22); !errors.Is(err, ErrGone) {
		t.Errorf("no process: %v", err)
	}
	if got, err := BootOffset(os.Getpid()); got != 0 || err != nil {
		t.Skipf("this process is in a time namespace itself: %s, %v", got, err)
	}
	if _, err := os.Stat("/proc/self/ns/time"); err != nil || os.Geteuid() != 0 {
		t.Skip("only root can make a time namespace, and not on every kernel")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--boottime", "1000", "sh", "-c",
		`read stat < /proc/$$/stat; echo "$stat"; read wait`)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Skip(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	buf := make([]byte, 4096)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	inside, err := ParseStat(string(buf[:n]))
	if err != nil {
		t.Fatal(err)
	}
	outside, err := ReadStat(inside.PID)
	if err != nil {
		t.Fatal(err)
	}
	offset, err := BootOffset(inside.PID)
	if err != nil || offset != 1000*time.Second || inside.StartTime != outside.StartTime+100*1000 {
		t.Errorf("%s, %v: %d inside, %d outside", offset, err, inside.StartTime, outside.StartTime)
	}
}

func FuzzParseBootOffset(f *testing.F) {
	f.Add("monotonic 5 0\nboottime -3 500000000\n")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := ParseBootOffset(text); err != nil && got != 0 {
			t.Fatalf("both %s and %v", got, err)
		}
	})
}

package doctor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	for want, marks := range map[string][]mark{
		"works; nothing to mend; all features available":                           {good, good},
		"works; 2 things to mend; 3 features not available here":                   {warn, absent, warn, absent, absent},
		"works; 1 thing to mend; 1 feature not available here":                     {absent, warn},
		"does not work; 1 failure; all features available":                         {bad},
		"does not work; 2 failures; 1 thing to mend; 1 feature not available here": {good, bad, warn, absent, bad},
	} {
		r := &Report{}
		for _, m := range marks {
			r.add(finding{mark: m, what: "x", text: "y"})
		}
		if got := r.Verdict(); got != want {
			t.Errorf("%v: %q, want %q", marks, got, want)
		}
	}
}

// TestMissingFeatures checks that a feature which this process lacks is not "ok", and that its remedy names a right
// only if the process lacks one.
func TestMissingFeatures(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("load a program: %w", unix.EPERM)
	old := errors.New("it takes Linux 6.10 or later")
	none, all := process.Status{}, process.Status{CapEff: ^uint64(0)}
	stack := needs(0, 2)[4]
	never := needs(3, 2)[0]
	for _, c := range []struct {
		name   string
		got    finding
		mark   mark
		remedy string
	}{
		{"without the capability", permitted(stack, none), absent, "CAP_SYS_ADMIN"},
		{"with the capability", permitted(stack, all), good, ""},
		{"never", permitted(never, all), absent, "reboot"},
		{"no right", program("x", "y", refused, none), absent, "CAP_BPF"},
		{"refused with all rights", program("x", "y", refused, all), absent, ""},
		{"old kernel", program("x", "y", old, none), absent, ""},
		{"program", program("x", "y", nil, none), good, ""},
		{"no priority", shortPauses(false), absent, "RLIMIT_RTPRIO"},
		{"priority", shortPauses(true), good, ""},
		{"no activity", queryFeatures(false, true, "on", &place{}), warn, "track_activities"},
		{"no query ids", queryFeatures(true, false, "auto", &place{}), warn, "compute_query_id = on"},
		{"query ids", queryFeatures(true, true, "auto", &place{}), good, ""},
		{"worker with priority", pauses("Max nice priority  0 0\nMax realtime priority     1   1    \n")[0], good, ""},
		{"worker without", pauses("Max nice priority  0 0\nMax realtime priority     0   0    \n")[0], warn, "RTPRIO"},
		{"worker without a limit", pauses("Max realtime priority   unlimited  unlimited\n")[0], good, ""},
		{"a long pause", paused(5*time.Millisecond + 1)[0], warn, "RTPRIO"},
		{"unknown limits", pauses("")[0], warn, "RTPRIO"},
	} {
		if c.got.mark != c.mark || !strings.Contains(c.got.hint, c.remedy) || c.remedy == "" && c.got.hint != "" {
			t.Errorf("%s: %+v", c.name, c.got)
		}
		if c.got.mark == good && strings.Contains(c.got.text, "not available") {
			t.Errorf("%s: ok, and %q", c.name, c.got.text)
		}
	}
}

func TestShortPauseIsNoFinding(t *testing.T) {
	t.Parallel()
	if found := paused(5 * time.Millisecond); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

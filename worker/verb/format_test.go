package verb

import (
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

func TestStackText(t *testing.T) {
	t.Parallel()
	trace := &backtrace.Trace{Threads: []backtrace.Thread{{Whole: true, Frames: []backtrace.Frame{
		{Function: "epoll_wait", Module: "libc.so.6", Address: 0x1234}, {Function: "ExecSort", Module: "postgres", Address: 0x5678},
		{Function: "PostgresMain", Module: "postgres", Address: 0x9abc}, {Function: "main", Module: "postgres"},
	}}}}
	for format, brief := range map[string]bool{"": false, "text": false, "TEXT": false, "brief": true, "short": true, "Brief": true} {
		req := &spool.Request{Settings: map[string]string{"format": format}}
		got := stackText(req, trace, render.Options{})
		if strings.Contains(got, "0x") == brief || strings.Contains(got, "epoll_wait") == brief || !strings.Contains(got, "ExecSort") {
			t.Errorf("%q: %s", format, got)
		}
		if brief {
			if cut := stackText(req, trace, render.Options{MaxBytes: len(got) - 1}); len(cut) > len(got)+30 || !strings.HasSuffix(cut, "left out)") {
				t.Errorf("%q was not cut: %s", format, cut)
			}
		}
	}
	for value, good := range map[string]bool{"text": true, "brief": true, "short": true, "json": false, "": false, "brief ": false} { //nolint:gocritic // with a space
		if _, err := settings(map[string]string{"format": value}); (err == nil) != good {
			t.Errorf("%q: %v", value, err)
		}
	}
}

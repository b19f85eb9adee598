package stackoracle

import (
	"testing"

	"pg_stat_backtrace/internal/figure"
)

// TestBusy stops a program that never sleeps at arbitrary moments: in prologues and epilogues, in the vDSO, in the
// procedure linkage table. It takes two of the four builds by default.
func TestBusy(t *testing.T) {
	tellTally(t)
	selected := figure.Share(t, 2)
	for i, g := range []target{
		{name: "busy", flags: "-O2 -fomit-frame-pointer", sources: "busy.c"},
		{name: "busy, unoptimized", flags: "-O0", sources: "busy.c"},
		{name: "busy, lazy binding", flags: "-O2 -Wl,-z,lazy -fno-plt", sources: "busy.c"},
		{name: "busy, static", flags: "-O2 -static-pie", sources: "busy.c"},
	} {
		if !selected(i) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			pid := launch(t, false, g.compile(t))
			for range randomStops(t) {
				thaw, ok := freeze(t, pid)
				if !ok {
					t.Fatal("the program has ended")
				}
				compare(t, subject{name: g.name, pid: pid, chain: []string{"main"}})
				runOn(t, pid, thaw)
			}
		})
	}
}

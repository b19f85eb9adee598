package clusterprofile

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestChosenProcesses samples one session and the postmaster, until both have ended.
func TestChosenProcesses(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	conn, other := server.Connect(t, "postgres", "postgres"), server.Connect(t, "postgres", "postgres")
	var chosen []process.ID
	for _, pid := range []int{int(conn.PgConn().PID()), server.PostmasterPID()} {
		id, err := process.IDOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		chosen = append(chosen, id)
	}
	o := Options{DataDir: server.DataDir, Mode: Wall, Processes: chosen, Duration: time.Second}
	began := time.Now()
	p, s := collect(context.Background(), t, o)
	most := time.Since(began)
	for _, sample := range p.Sample {
		if got := label(sample, LabelPID); !slices.ContainsFunc(chosen, func(id process.ID) bool { return strconv.Itoa(id.PID) == got }) {
			t.Errorf("a sample of process %s, and process %d lives: %v", got, other.PgConn().PID(), sample.Label)
		}
	}
	for _, id := range chosen {
		var took int64
		for _, sample := range p.Sample {
			if label(sample, LabelPID) == strconv.Itoa(id.PID) {
				took += sample.Value[len(sample.Value)-1]
			}
		}
		// The times of a process begin when the kernel's programs are attached, and end when they are detached.
		if d := time.Duration(took); d < s.Took/2 || d > most {
			t.Errorf("process %d: %s of %s, all took %s", id.PID, d, s.Took, most)
		}
	}

	// A process with another start time is another process.
	o.Duration = time.Hour
	o.Processes = []process.ID{{PID: chosen[0].PID, StartTime: chosen[0].StartTime + 1}}
	if p, s, err := Collect(t.Context(), o); err == nil || s == nil || !s.ProcessesEnded {
		t.Errorf("a former process with the same id: %v, %+v, %v", p, s, err)
	}

	o.Processes = chosen[:1]
	o.Started = func() { go func() { _ = conn.Close(context.Background()) }() }
	if _, s := collect(context.Background(), t, o); !s.ProcessesEnded || s.Processes != 1 {
		t.Errorf("%+v", *s)
	}
}

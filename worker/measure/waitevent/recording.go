package waitevent

import (
	"context"
	"fmt"
	"io"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
)

// recordingLook is the time between two looks of Recording.Run.
const recordingLook = 20 * time.Millisecond

// StatementTexts collects, at each call of Look, the texts of running statements. state.SessionLog is such a collection.
type StatementTexts interface {
	Look()
	// Texts returns texts by query id.
	Texts() map[int64]string
}

// Recording records every wait of one process, with the texts of its statements.
type Recording struct {
	server   *Server
	provider waits.Provider
	tracer   waits.Tracer
	pid      int
	report   *SessionReport
	texts    StatementTexts // nil: none
	traced   bool
	began    time.Time
}

// NewRecording starts to record a process of the server, by its id on this host. Texts may be nil. The error says that the
// provider's method sees no single waits.
func (s *Server) NewRecording(p waits.Provider, pid int, texts StatementTexts) (*Recording, error) {
	tracer, ok := p.(waits.Tracer)
	if !ok {
		return nil, fmt.Errorf("%w: the method %s sees no single waits", waits.ErrUnsupported, p.Info().Method)
	}
	r := &Recording{
		server: s, provider: p, tracer: tracer, pid: pid, report: s.NewSessionReport(), texts: texts, began: time.Now(),
	}
	r.report.began = r.began
	return r, nil
}

// Look adds the provider's new records to the report. The caller calls it about every 20 ms, because the kernel keeps few of
// them.
func (r *Recording) Look() {
	if r.texts != nil {
		r.texts.Look()
	}
	// The provider knows a process only from its first wait on, so try SetTraced again until it succeeds.
	if !r.traced && r.tracer.SetTraced(r.pid, true) {
		r.traced, r.report.began = true, time.Now() // earlier waits are missing
	}
	r.report.Add(r.tracer.Records())
}

// Run calls Look at intervals until the duration is over or ctx ends.
func (r *Recording) Run(ctx context.Context, d time.Duration) {
	end, tick := time.NewTimer(d), time.NewTicker(recordingLook)
	defer end.Stop()
	defer tick.Stop()
	for {
		r.Look()
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Text prints the waits that were recorded until now, by query.
func (r *Recording) Text(w io.Writer) error {
	r.report.Add(r.tracer.Records())
	snapshot, err := r.provider.Snapshot()
	if err != nil {
		return err
	}
	r.report.SetLost(snapshot.Lost.Records)
	if r.texts != nil {
		r.report.SetTexts(r.texts.Texts())
	}
	info := r.provider.Info()
	untitled := func(int) string { return "" }
	r.report.SetGoing(r.server.rows(r.server.NewReport(info, snapshot, untitled, []int{r.pid}).InProgress))
	if _, err := fmt.Fprintf(w, "Process %d, method %s (%s), %.1f s. %s\n%s\n\n", r.pid, info.Method, info.Mechanism,
		time.Since(r.began).Seconds(), Sees(info), SeesOfTrace(info)); err != nil {
		return err
	}
	return r.report.Text(w)
}

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/screen/page"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/serve/web"
)

// actions returns the actions of the incident screen. An incident is finished even if the browser closes the connection, unless
// ctx ends.
func (w *Worker) actions(ctx context.Context, screen *page.Page) *web.Actions {
	return &web.Actions{
		Capture: func(ctx context.Context, pid int) ([]byte, error) {
			answer, err := screen.Capture(ctx, pid)
			if errors.Is(err, source.ErrNoSession) {
				return nil, &web.ActionError{Status: http.StatusNotFound, Text: err.Error()}
			}
			return answer, err
		},
		Incident: func(_ context.Context, note string) ([]byte, error) { return w.takeIncident(ctx, note) },
		Waits:    w.recordWaits,
	}
}

// recordWaits records every wait of a process for web.ActionMeasures, as "waits --trace" does, and prints them by query.
func (w *Worker) recordWaits(ctx context.Context, serverPID int) (string, error) {
	c, err := w.current()
	if err != nil {
		return "", fmt.Errorf("the server cannot be read: %w", err)
	}
	pid := c.Local(serverPID)
	members, err := c.Members()
	if err != nil {
		return "", fmt.Errorf("the processes of the server cannot be listed: %w", err)
	}
	if !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Local == pid }) {
		return "", &web.ActionError{Status: http.StatusNotFound, Text: fmt.Sprintf("process %d: %v", serverPID, source.ErrNoSession)}
	}
	server, err := waitevent.Locate(c)
	if err != nil {
		return "", err
	}
	provider, err := waits.Open(server.Target, waits.Options{Method: waits.Exact, Keep: []int{pid}, Queries: true})
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "", &web.ActionError{Status: http.StatusServiceUnavailable,
			Text: "the worker has no right to load programs into the kernel; give it CAP_BPF and CAP_PERFMON (see doc/worker.md)"}
	case errors.Is(err, waits.ErrUnsupported):
		return "", &web.ActionError{Status: http.StatusServiceUnavailable, Text: err.Error()}
	case err != nil:
		return "", err
	}
	defer provider.Close()
	var out strings.Builder
	var texts waitevent.StatementTexts
	if reader, err := state.Open(c); err == nil {
		const pause = 100 * time.Millisecond
		texts = state.NewSessionLog(reader, pause)
	}
	recording, err := server.NewRecording(provider, pid, texts)
	if err != nil {
		return "", &web.ActionError{Status: http.StatusServiceUnavailable, Text: err.Error()}
	}
	recording.Run(ctx, web.ActionMeasures)
	if err := recording.Text(&out); err != nil {
		return "", err
	}
	return out.String(), nil
}

// takenIncident is the answer to a request for an incident.
type takenIncident struct {
	ID   string `json:"id"`
	File string `json:"file"`
	// Command prints the incident.
	Command string `json:"command"`
	// Missing says which parts of the incident could not be read.
	Missing []string `json:"missing,omitempty"`
}

// takeIncident makes an incident like the command "incident take", and stores it in the directory in which the worker stores
// the incidents that rules find. It returns a takenIncident as JSON.
func (w *Worker) takeIncident(ctx context.Context, note string) ([]byte, error) {
	record := w.cfg.Record
	if record.Dir == "" || record.Period == 0 {
		return nil, &web.ActionError{Status: http.StatusConflict,
			Text: "the worker records nothing, so it keeps no incidents; start it with --record and --record-dir"}
	}
	c, err := w.current()
	if err != nil {
		return nil, fmt.Errorf("the server cannot be read: %w", err)
	}
	bounds := rules.Default()
	if record.Rules != RulesOff {
		if bounds, err = record.startRules(); err != nil {
			return nil, fmt.Errorf("the rules bound the incidents, and cannot be read: %w", err)
		}
	}
	now := time.Now()
	look, notes, err := recorder.New(recorder.Options{
		DataDir: c.DataDir, Server: w.current, Texts: recorder.Texts(record.Texts), Redact: record.Redact,
		Redacted: &w.redacted,
	}).Snapshot(now)
	if err != nil {
		return nil, fmt.Errorf("the sessions cannot be read: %w", err)
	}
	i := incident.Collect(ctx, incident.Source{Server: c, StateDir: record.Dir, Capturer: w.capturer, Proof: w.verbs.PlanProof,
		Program: w.cfg.Version, Identify: w.identifier()},
		incident.ByPerson(now, note), look)
	for _, n := range notes {
		i.Missing = append(i.Missing, "sessions: "+n)
	}
	if i.Server.SystemID == "" {
		return nil, errors.New("the server's control file cannot be read, so the incident has no directory")
	}
	dir := incident.Dir{Path: incident.DirOf(record.Dir, i.Server.SystemID), Keep: bounds.Keep, Size: bounds.Size, MinFree: record.MinFree}
	file, err := dir.Write(i)
	if err != nil {
		return nil, err
	}
	return json.Marshal(takenIncident{ID: i.ID, File: file, Missing: i.Missing, Command: fmt.Sprintf(
		"pg_stat_backtrace incident show --record-dir %s --cluster %s %s", render.ShellWord(record.Dir), i.Server.SystemID, i.ID)})
}

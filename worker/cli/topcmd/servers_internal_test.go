package topcmd

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
	"pg_stat_backtrace/worker/serve/node"
)

func TestTitles(t *testing.T) {
	t.Parallel()
	var got view.Titles
	for _, title := range []string{
		"postgres: web shop [local] idle", "postgres: 15/main: web shop 10.0.0.1(4711) idle in transaction",
		"postgres: web shop ::1(4711) idle in transaction (aborted)", "postgres: web shop [local] UPDATE waiting",
		"postgres: web shop [local] SELECT", "postgres: web shop [local]",
		"postgres: checkpointer", "postgres: walwriter ", "postgres: walsender rep 10.0.0.2(99) streaming 0/3000060",
		"postgres: autovacuum worker shop", "postgres: parallel worker for PID 4711 ", "",
	} {
		addTitle(&got, title)
	}
	if want := (view.Titles{Active: 2, Waiting: 1, Idle: 1, IdleInTransaction: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestServerHidden lists a server as a user sees it that may not read its memory.
func TestServerHidden(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	if _, err := holder.Exec(t.Context(), "BEGIN; SELECT pg_advisory_lock(7)"); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = waiter.PgConn().Exec(t.Context(), "SELECT pg_advisory_lock(7)").ReadAll() }()
	title := fmt.Sprintf("/proc/%d/cmdline", waiter.PgConn().PID())
	pgtest.Wait(t, "the waiter", func() bool {
		text, err := os.ReadFile(title)
		return err == nil && strings.Contains(string(text), " waiting")
	})
	f := &topFlags{interval: time.Second, count: 1, sort: "findings", width: 120, height: 24, format: console.FormatText}
	list := &servers{f: f, stderr: io.Discard, opening: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	list.find = func() ([]string, []node.Process, error) {
		return nil, []node.Process{{PID: s.PostmasterPID(), UID: os.Geteuid()}}, nil
	}
	if err := list.search(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err := list.print(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), "sudo pg_stat_backtrace top") {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{
		"this user may not read the memory of the server", "sudo pg_stat_backtrace top", "1 waiting for locks, 1 idle in transaction",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	list.find = func() ([]string, []node.Process, error) { return nil, nil, nil }
	if err := list.search(); err != nil || len(list.entries) != 0 {
		t.Errorf("the server that has ended is still in the list: %v", err)
	}
}

// TestServerListBounds: the list is bounded and counts the rest, and a server that cannot be opened has the reason.
func TestServerListBounds(t *testing.T) {
	f := &topFlags{interval: time.Second, count: 1, sort: "name", width: 120, height: 24, format: console.FormatText}
	var found []string
	for i := range mostServers + 3 {
		found = append(found, fmt.Sprintf("/nowhere/%03d", i))
	}
	list := &servers{f: f, stderr: io.Discard, opening: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	list.find = func() ([]string, []node.Process, error) { return found, nil, nil }
	for range 2 {
		if err := list.search(); err != nil || len(list.entries) != mostServers || list.more != 3 {
			t.Errorf("%d servers and %d more, %v", len(list.entries), list.more, err)
		}
	}
	found, list.entries = found[:1], list.entries[:1]
	err := list.print(t.Context(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("the error is %v", err)
	}
}

// TestEndedServer: a server that has ended has no findings, which would be old. It comes last, and leaves the list after a while.
func TestEndedServer(t *testing.T) {
	t.Parallel()
	var r view.Server
	d := &view.Data{Info: &source.Info{}, Findings: &source.Findings{Findings: make([]source.Finding, 2)}}
	if fillServer(&r, d, time.Now(), nil); r.Findings == nil || r.Error != "" || r.Ended != nil {
		t.Errorf("%+v", r)
	}
	d.Info.Ended, d.Info.Error = true, "no postmaster"
	now := time.Now()
	for i := range 2 { // the time stays at the first answer
		fillServer(&r, d, now.Add(time.Duration(i)*time.Second), nil)
		if r.Findings != nil || r.Error != "the server does not run: no postmaster" || r.Ended == nil || !r.Ended.Equal(now) {
			t.Errorf("%+v", r)
		}
	}
	var found []string
	list := &servers{find: func() ([]string, []node.Process, error) { return found, nil, nil }}
	for name, ended := range map[string]time.Duration{"/long": keepEnded, "/again": keepEnded, "/short": keepEnded / 2} {
		e := &serverEntry{row: view.Server{Name: name, Ended: new(time.Now().Add(-ended))}}
		list.entries = append(list.entries, e)
	}
	ends := 0
	list.entry("/long").end = func() { ends++ }
	found = []string{"/again", "/new"} // the third one runs again
	if err := list.search(); err != nil {
		t.Fatal(err)
	}
	rows, _, _ := list.list()
	names := map[string]bool{}
	for i := range rows {
		names[rows[i].Name] = true
	}
	if len(rows) != 3 || !names["/again"] || !names["/short"] || !names["/new"] || ends != 1 {
		t.Errorf("%v, %d ends", names, ends)
	}
	if fillServer(&r, &view.Data{Info: &source.Info{}}, now, nil); r.Ended != nil {
		t.Errorf("it runs again: %+v", r)
	}
}

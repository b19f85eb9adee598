package moment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pg_stat_backtrace/internal/pgtest"
)

// The recorder makes each situation on real servers and keeps the distinct stacks below the directory of -record:
//
//	PGSB_TEST_BINDIRS=... go test ./worker/moment -run TestRecord -record DIR -program PROGRAM [-only WORDS]
//
// DIR/local.MAJOR must list the static functions, which have no name on a stripped server: the names that nm prints
// with "t" for the program postgres and its libraries. Then -run TestPick -recorded DIR writes testdata from them. Both are run by hand, when PostgreSQL or the table changes.
var (
	recordDir = flag.String("record", "", "record stacks of all situations below this directory")
	program   = flag.String("program", "", "the program pg_stat_backtrace that takes the stacks")
	only      = flag.String("only", "", "record only situations whose names contain one of these words")
)

// A situation is a load that the recorder makes while it takes stacks of all processes of the server.
type situation struct {
	name     string
	setup    string     // run once before, in one session
	sessions [][]string // each repeats its statements; statements with "@" in front run once at the start
	seconds  float64    // how long stacks are taken; 0: 1.5
	act      func(r *recording)
}

// A recording is one situation in progress.
type recording struct {
	t      *testing.T
	server *pgtest.Server
	other  *pgtest.Server // the standby, where the situation has one
	ctx    context.Context
	group  sync.WaitGroup
}

// recorded is one distinct stack: processes of this type with this wait had it count times.
type recorded struct {
	backend, waitType, waitEvent string
	stack                        string // outermost first, separated by ";"
}

func TestRecord(t *testing.T) {
	if *recordDir == "" {
		t.Skip("without -record")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		for _, set := range serverSets {
			recordSet(t, binDir, set)
		}
	})
}

// A serverSet is a server with the situations that are made on it.
type serverSet struct {
	name       string
	options    pgtest.Options
	setup      string
	standby    bool // a streaming standby is recorded as well
	situations []situation
}

// fill puts the server's paths into a statement.
func fill(server *pgtest.Server, sql string) string {
	return strings.NewReplacer("%SOCKET%", server.SocketDir, "%PORT%", strconv.Itoa(server.Port), "%DATA%", server.DataDir).Replace(sql)
}

func wanted(name string) bool {
	if *only == "" {
		return true
	}
	for word := range strings.SplitSeq(*only, ",") {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

func recordSet(t *testing.T, binDir string, set serverSet) {
	var list []situation
	for _, s := range set.situations {
		if wanted(s.name) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return
	}
	server := pgtest.Start(t, binDir, set.options)
	execAll(t, server, strings.ReplaceAll(set.setup, ";", ";;"))
	var other *pgtest.Server
	if set.standby {
		other = standbyOf(t, server, binDir, set.options.Conf)
	}
	dir := filepath.Join(*recordDir, strconv.Itoa(server.Major))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		stacks := recordOne(t, server, other, s)
		writeRaw(t, filepath.Join(dir, s.name+".txt"), stacks)
		t.Logf("%d %s: %d distinct stacks", server.Major, s.name, len(stacks))
	}
	server.Stop("immediate")
	if other != nil {
		other.Stop("immediate")
	}
}

func recordOne(t *testing.T, server, other *pgtest.Server, s situation) map[recorded]int {
	if s.setup != "" {
		execAll(t, server, s.setup)
	}
	seconds := s.seconds
	if seconds == 0 {
		seconds = 1.5
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds*float64(time.Second)))
	defer cancel()
	r := &recording{t: t, server: server, other: other, ctx: ctx}
	for _, statements := range s.sessions {
		r.loop(server, statements...)
	}
	if s.act != nil {
		r.group.Go(func() { s.act(r) })
	}
	stacks := map[recorded]int{}
	for i := 0; ctx.Err() == nil; i++ {
		take(server, stacks, i%3 != 0)
		if other != nil {
			take(other, stacks, false)
		}
	}
	r.group.Wait()
	calm(t, server)
	return stacks
}

// calm ends all sessions that a situation has left.
func calm(t *testing.T, server *pgtest.Server) {
	if server.PostmasterPID() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.DSN("postgres", "postgres"))
	if err != nil {
		t.Logf("after the situation: %v", err)
		return
	}
	defer conn.Close(ctx)
	_, _ = conn.Exec(ctx, "ROLLBACK PREPARED 'p'") // a transaction that the end of the situation has left
	for ctx.Err() == nil {
		var n int
		err := conn.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE backend_type IN ('client backend', 'parallel worker') AND pid <> pg_backend_pid()`).Scan(&n)
		if err != nil || n == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func execAll(t *testing.T, server *pgtest.Server, sql string) {
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, server.DSN("postgres", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for statement := range strings.SplitSeq(sql, ";;") {
		if _, err := conn.Exec(ctx, fill(server, statement)).ReadAll(); err != nil {
			t.Logf("%s: %v", statement, err)
		}
	}
}

// loop repeats the statements in a session until the situation ends.
func (r *recording) loop(server *pgtest.Server, statements ...string) {
	r.group.Go(func() {
		conn, err := pgconn.Connect(r.ctx, server.DSN("postgres", "postgres"))
		if err != nil {
			return
		}
		defer conn.Close(context.Background())
		reported := map[string]bool{}
		for first := true; r.ctx.Err() == nil; first = false {
			for _, statement := range statements {
				once := strings.HasPrefix(statement, "@")
				if once && !first {
					continue
				}
				_, err := conn.Exec(r.ctx, fill(server, strings.TrimPrefix(statement, "@"))).ReadAll()
				if err != nil && r.ctx.Err() == nil && !reported[err.Error()] && len(reported) < 2 {
					reported[err.Error()] = true
					r.t.Logf("%s: %v", statement, err)
				}
				if r.ctx.Err() != nil || conn.IsClosed() {
					return
				}
			}
		}
	})
}

// silent opens a connection that has sent its startup packet and this query, and never reads an answer.
func (r *recording) silent(user, query string) {
	conn, err := net.Dial("unix", filepath.Join(r.server.SocketDir, fmt.Sprintf(".s.PGSQL.%d", r.server.Port)))
	if err != nil {
		r.t.Log(err)
		return
	}
	go func() { <-r.ctx.Done(); conn.Close() }()
	if user == "" {
		return
	}
	f := pgproto3.NewFrontend(conn, conn)
	f.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersionNumber,
		Parameters: map[string]string{"user": user, "database": "postgres"}})
	if query != "" {
		f.Send(&pgproto3.Query{String: query})
	}
	_ = f.Flush()
}

type jsonStack struct {
	PID       int    `json:"pid"`
	WaitType  string `json:"wait_event_type"`
	WaitEvent string `json:"wait_event"`
	Threads   []struct {
		Frames []struct {
			Function string `json:"function"`
		} `json:"frames"`
	} `json:"threads"`
}

var titles sync.Map // PID to backend type

// sessions returns the processes of the server that serve clients.
func sessions(server *pgtest.Server) (pids []string) {
	postmaster := server.PostmasterPID()
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	for word := range strings.FieldsSeq(string(children)) {
		var pid int
		_, _ = fmt.Sscan(word, &pid)
		switch typeOfTitle(pid) {
		case "client backend", "parallel worker", "walsender":
			pids = append(pids, word)
		}
	}
	return pids
}

// take captures all processes of the server some times, or only its sessions.
func take(server *pgtest.Server, into map[recorded]int, onlySessions bool) {
	arguments := []string{"capture", "-n", "60", "-i", "1ms", "--format", "json", "-D", server.DataDir}
	if onlySessions {
		arguments = append([]string{"capture", "-n", "120", "-i", "1ms", "--format", "json"}, sessions(server)...)
	}
	command := exec.Command(*program, arguments...)
	out, _ := command.Output() // processes end meanwhile
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		var s jsonStack
		if json.Unmarshal(line, &s) != nil || len(s.Threads) == 0 {
			continue
		}
		names := make([]string, 0, len(s.Threads[0].Frames))
		for _, f := range s.Threads[0].Frames {
			names = append(names, f.Function)
		}
		for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
			names[i], names[j] = names[j], names[i]
		}
		r := recorded{backendType(s.PID, names), s.WaitType, s.WaitEvent, strings.Join(names, ";")}
		into[r]++
	}
}

// backendType returns the type of a process in the words of pg_stat_activity, from its title, or else from its stack.
func backendType(pid int, names []string) string {
	if kind, ok := titles.Load(pid); ok {
		return kind.(string)
	}
	kind := typeOfTitle(pid)
	if kind == "" {
		kind = typeOfStack(names)
		return kind
	}
	titles.Store(pid, kind)
	return kind
}

func typeOfTitle(pid int) string {
	title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	rest, ok := strings.CutPrefix(string(title), "postgres: ")
	if err != nil || !ok {
		return ""
	}
	for _, kind := range []string{"autovacuum launcher", "autovacuum worker", "parallel worker", "walsender", "walreceiver", "startup",
		"checkpointer", "background writer", "walwriter", "archiver", "logical replication launcher", "slotsync worker",
		"walsummarizer", "io worker", "stats collector", "logger"} {
		if strings.HasPrefix(rest, kind) {
			if kind == "stats collector" || kind == "logger" {
				return kind
			}
			return kind
		}
	}
	if strings.HasPrefix(rest, "logical replication") {
		return "logical replication worker"
	}
	return "client backend"
}

func typeOfStack(names []string) string {
	for _, name := range names {
		switch name {
		case "AutoVacWorkerMain":
			return "autovacuum worker"
		case "ParallelWorkerMain":
			return "parallel worker"
		case "WalSndLoop", "exec_replication_command":
			return "walsender"
		case "StartupProcessMain":
			return "startup"
		case "BackendRun", "BackendMain":
			return "client backend"
		}
	}
	return ""
}

func writeRaw(t *testing.T, path string, stacks map[recorded]int) {
	lines := make([]string, 0, len(stacks))
	for s, n := range stacks {
		lines = append(lines, fmt.Sprintf("%d|%s|%s|%s|%s", n, s.backend, s.waitType, s.waitEvent, s.stack))
	}
	sort.Strings(lines)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// standbyOf makes a streaming standby from a copy of the primary's files.
func standbyOf(t *testing.T, primary *pgtest.Server, binDir string, settings []string) *pgtest.Server {
	standby := pgtest.Start(t, binDir, pgtest.Options{Stopped: true, Conf: settings})
	conf, err := os.ReadFile(filepath.Join(standby.DataDir, "postgresql.conf"))
	if err != nil {
		t.Fatal(err)
	}
	primary.Stop("fast")
	out, err := exec.Command("sh", "-c", fmt.Sprintf("rm -rf %[2]s/* && cp -a %[1]s/. %[2]s/ && rm -f %[2]s/postmaster.pid && touch %[2]s/standby.signal",
		primary.DataDir, standby.DataDir)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	conf = append(conf, fmt.Appendf(nil, "\nprimary_conninfo = 'host=%s port=%d user=postgres application_name=one'\nhot_standby_feedback = off\nmax_standby_streaming_delay = -1\nshared_buffers = '8MB'\n",
		primary.SocketDir, primary.Port)...)
	if err := os.WriteFile(filepath.Join(standby.DataDir, "postgresql.conf"), conf, 0o600); err != nil {
		t.Fatal(err)
	}
	uid, gid := standby.OSUser()
	_ = filepath.Walk(standby.DataDir, func(path string, _ os.FileInfo, _ error) error { return os.Lchown(path, uid, gid) })
	primary.Start()
	standby.Start()
	return standby
}

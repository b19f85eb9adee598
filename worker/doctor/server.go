package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/queue"
)

// timeout bounds the search for the server, and the checks by SQL.
const timeout = 5 * time.Second

// server finds the server, and makes the checks that need a server. When ctx has ended, it begins no further check.
func server(ctx context.Context, r *Report, o Options) {
	o.Progress("the server")
	find, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := cluster.Find(find, cluster.Options{
		DataDir: o.DataDir, ConnString: o.ConnString, Foreign: o.Foreign,
	})
	if err != nil {
		r.add(finding{bad, "server", err.Error(), serverRemedy(err, o, os.Geteuid() == 0)})
		return
	}
	r.add(finding{good, "server", fmt.Sprintf("PostgreSQL %d in %s, postmaster %d, user id %d",
		c.Version, c.DataDir, c.PostmasterPID, c.UID), ""}, user(c), namespace(c), view(c))
	var p *cluster.Program
	for _, step := range []struct {
		subject string
		check   func() []finding
	}{
		{"the server's program", func() []finding {
			var running finding
			running, p = runningProgram(c)
			return []finding{running}
		}},
		{"the server's symbols", func() []finding { return []finding{symbols(c, p)} }},
		{"a capture", func() []finding { return capturing(ctx, c) }},
		{"the worker", func() []finding { return append(worker(c, o), plans(c, p)...) }},
		{"a connection", func() []finding { return connection(ctx, c, o) }},
	} {
		if ctx.Err() != nil {
			return
		}
		o.Progress(step.subject)
		r.add(step.check()...)
	}
}

// user gives this process the same rights as the worker: a process that was started as root becomes the server's user
// with CAP_SYS_PTRACE.
func user(c cluster.Cluster) finding {
	rights, err := cluster.BecomeServerUser(c)
	if err != nil {
		return finding{bad, "user", err.Error(), "Run the worker as the server's operating system user, or as root."}
	}
	text := fmt.Sprintf("the checks of the server run as the worker does: user id %d", rights.UID)
	if rights.Trace {
		text += ", CAP_SYS_PTRACE"
	}
	if rights.Sample {
		text += ", CAP_PERFMON"
	}
	return finding{good, "user", text, ""}
}

func namespace(c cluster.Cluster) finding {
	text := "the server is in this PID namespace"
	if c.Outside() {
		text = fmt.Sprintf("the server is in a PID namespace below this one, its postmaster is process %d there; "+
			"process ids are translated", c.ServerPID)
	}
	if c.Root != "" {
		text += "; its root directory is " + c.Root
	}
	return finding{good, "namespace", text, ""}
}

// runningProgram describes the server's program, and checks whether the worker finds the server's variables in it. The
// program is nil if it cannot be read.
func runningProgram(c cluster.Cluster) (finding, *cluster.Program) {
	p, err := cluster.ProgramOf(c.PostmasterPID)
	if err != nil {
		return finding{warn, "program", err.Error(), noVariables}, nil
	}
	if _, err := waitevent.Locate(c); err != nil {
		return finding{warn, "program", fmt.Sprintf("the server runs %s: %v", p.Path, err), noVariables}, &p
	}
	return programFile(c, &p), &p
}

const noVariables = "Captures work, but stacks may have no query and no wait event, and the commands waits, memory and " +
	"profile -D cannot read this server. Install a release that knows this version, or a server with exported symbols."

// programFile compares the server's program with the file on the disk and with the memory of the server: a package
// upgrade replaces the file, and a library for huge pages moves the code.
func programFile(c cluster.Cluster, p *cluster.Program) finding {
	text := "the server runs " + p.Path
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.PostmasterPID))
	if exe = strings.TrimSuffix(exe, " (deleted)"); err == nil && exe != p.Path {
		text += ", started by " + exe
	}
	if moved, all := p.MovedCode(); moved > 0 && !p.Deleted {
		return finding{
			warn, "program", fmt.Sprintf("%s; %.0f %% of its code are in memory that is not the file, as libraries for huge "+
				"pages arrange it", text, 100*float64(moved)/float64(all)),
			"Functions there cannot be traced. To trace them, start the server without the library that moves its code.",
		}
	}
	if !p.Deleted {
		return finding{good, "program", text, ""}
	}
	return finding{
		warn, "program", p.Path + " was replaced or removed since the server was started, as by a package upgrade. " +
			"Sessions that have not used PL/pgSQL yet may fail to load plpgsql.so, and SQL calls then fail there with " +
			"PostgreSQL's own error",
		"Restart the server. Until then use an open session that has used PL/pgSQL, or the command line: " +
			"pg_stat_backtrace capture PID.",
	}
}

// symbols counts the server's functions that have a name in stacks.
func symbols(c cluster.Cluster, p *cluster.Program) finding {
	cover, err := symbolize.Cover(fmt.Sprintf("/proc/%d/exe", c.PostmasterPID))
	if p != nil {
		var file *os.File
		if file, err = p.Open(); err == nil {
			cover, err = symbolize.Cover(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
			_ = file.Close()
		}
	}
	if err != nil {
		return finding{warn, "symbols", err.Error(), "Stacks of this server may lack names."}
	}
	share := 100 * float64(cover.Named) / float64(max(cover.Functions, 1))
	text := fmt.Sprintf("%.1f %% of the %d functions of postgres have a name (build-id %s)",
		share, cover.Functions, cover.BuildID)
	if cover.Derived+cover.Noted > 0 {
		text += "; " + units.Plural(cover.Derived, "{the name|the names} of %d more {is|are} derived from its own code") + ", and " +
			units.Plural(cover.Noted, "%d {other has|others have} a note")
	}
	const enough = 90
	if share < enough {
		return finding{
			warn, "symbols", text,
			"The binary is stripped: most static functions appear as postgres+0x…. " +
				"What to install or configure to name them: pg_stat_backtrace symbols -D " + render.ShellWord(c.DataDir),
		}
	}
	return finding{good, "symbols", text, ""}
}

// capturing captures one process of the server five times, and reports the last stack and the longest pause.
func capturing(ctx context.Context, c cluster.Cluster) []finding {
	members, err := c.Members()
	members = slices.DeleteFunc(members, func(m cluster.Member) bool { return m.Denied != nil })
	if err != nil || len(members) == 0 {
		return []finding{{warn, "capture", fmt.Sprintf("no process of the server to try it on: %v", err), ""}}
	}
	m := members[0]
	target, err := c.Contains(m.PID)
	if err != nil {
		return []finding{{warn, "capture", fmt.Sprintf("the process it was tried on has gone: %v", err), ""}}
	}
	defer target.Held.Release()
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		return []finding{{bad, "capture", err.Error(), ""}}
	}
	const stops = 5
	var longest time.Duration
	var t *backtrace.Trace
	for range stops {
		if t, err = capturer.Capture(ctx, target, capture.Options{}); err != nil {
			f := render.FaultOf(m.PID, err)
			return []finding{{bad, "capture", f.Message + ". " + f.Detail, f.Hint}}
		}
		longest = max(longest, t.Pause)
	}
	text := fmt.Sprintf("process %d (%s): %s, stopped for %.1f us",
		m.PID, m.Title, units.Count(len(t.Threads[0].Frames), "frame"), float64(t.Pause.Nanoseconds())/1e3)
	found := paused(longest)
	switch {
	case !t.Threads[0].Whole:
		return append(found, finding{warn, "capture", text + ", but the stack was cut: " + t.Threads[0].Stop, ""})
	case t.Unrecognised != "":
		return append(found, finding{
			warn, "capture", text + "; server not recognised: " + t.Unrecognised,
			"Stacks have no wait event, query and PL/pgSQL functions. Install a release that knows this version.",
		})
	}
	return append(found, finding{good, "capture", text, ""})
}

// paused warns if the longest stop of a process took more than 5 ms.
func paused(longest time.Duration) []finding {
	const long = 5 * time.Millisecond
	if longest <= long {
		return nil
	}
	return []finding{{warn, "pauses", fmt.Sprintf("a stop took %.1f ms: another process ran meanwhile",
		float64(longest.Microseconds())/1e3), pausesRemedy}}
}

// connection makes the checks by SQL: the connection slots, query ids, the extension, its version and its objects.
func connection(ctx context.Context, c cluster.Cluster, o Options) []finding {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var found []finding
	connected := false
	err := query(ctx, c, o, func(ctx context.Context, conn *pgx.Conn) error {
		connected = true
		list, err := slots(ctx, conn)
		if err != nil {
			return err
		}
		found = list
		p, err := placeOf(ctx, conn, c)
		if err != nil {
			return err
		}
		ids, err := queryIDs(ctx, conn, &p)
		if err != nil {
			return err
		}
		found = append(found, ids)
		list, installed, err := ofDatabase(ctx, conn, c)
		found = append(found, list...)
		if err != nil || installed {
			return err
		}
		if list, other := elsewhere(ctx, conn, c); other {
			found = append(found, list...)
			return nil
		}
		remedy, err := p.missing(ctx, conn)
		found = append(found, finding{
			warn, "extension", fmt.Sprintf("not in database %q, and in no other one that this role may connect to", p.database), remedy,
		})
		return err
	})
	if connected && err != nil {
		return append(found, finding{
			warn, "extension", "a query of the checks failed: " + err.Error(),
			"Run doctor again when the server is less busy. If the query still fails, compare the privileges of the " +
				"extension's objects with the message.",
		})
	}
	if err != nil {
		return []finding{{warn, "connection", err.Error(), connectionRemedy(c, o, err)}}
	}
	return found
}

// connectionRemedy returns the remedy for a failure to connect. If the server has refused the login, the role or its
// authentication is wrong. Otherwise the address is wrong.
func connectionRemedy(c cluster.Cluster, o Options, err error) string {
	const effect = "Without a connection the worker answers superusers only. "
	if remedy := fullRemedy(c, err); remedy != "" {
		return remedy
	}
	var refusal *pgconn.PgError
	switch {
	case errors.As(err, &refusal), errors.Is(err, cluster.ErrConnString):
		return effect + "Give it a connection string of a role that may log in."
	case o.ConnString != "":
		return effect + "Correct host and port in the connection string, or leave them out: with -D the worker takes them " +
			"from the data directory."
	case c.SocketDir == "" && c.Root != "":
		return effect + "The server has no Unix socket, and its container may have its own network. Give the worker a " +
			"connection string with the host and port that lead to the server, or set unix_socket_directories."
	case c.SocketDir == "":
		return effect + "The server has no Unix socket. Give the worker a connection string with a host and port on which " +
			"the server listens, or set unix_socket_directories."
	}
	return effect + "Give it a connection string with a host and port on which the server listens."
}

// query runs f in one session of the server.
func query(ctx context.Context, c cluster.Cluster, o Options, f func(context.Context, *pgx.Conn) error) error {
	connected := make(chan cluster.ConnState, 1)
	conn, err := cluster.NewConn(cluster.ConnOptions{
		ConnString: o.ConnString, Cluster: &c, Named: o.DataDir != "", Foreign: o.Foreign, Check: c.Verify,
		OnChange: func(s cluster.ConnState) {
			select {
			case connected <- s:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = conn.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	select {
	case <-ctx.Done():
		return fmt.Errorf("the server did not answer: %w", ctx.Err())
	case s := <-connected:
		if !s.Connected {
			return s.Err
		}
	}
	return conn.Query(ctx, f)
}

// extension finds the extension in the database of the connection, and compares its version with the files on the host.
// installed is set if the database has the extension.
func extension(ctx context.Context, conn *pgx.Conn, p *place) (f finding, installed bool, err error) {
	var version, available, role string
	err = conn.QueryRow(ctx, `SELECT current_user, e.extversion, coalesce(a.default_version, e.extversion)
		FROM pg_catalog.pg_extension e LEFT JOIN pg_catalog.pg_available_extensions a ON a.name = e.extname
		WHERE e.extname = 'pg_stat_backtrace'`).Scan(&role, &version, &available)
	text := fmt.Sprintf("version %s in database %q (role %q)", version, p.database, role)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return finding{}, false, nil
	case err != nil:
		return finding{}, false, err
	case version != available:
		return finding{
			warn, "extension", fmt.Sprintf("%s; the files on this host are of version %s", text, available),
			p.change("ALTER EXTENSION pg_stat_backtrace UPDATE") + "  # and in each other database that has it",
		}, true, nil
	}
	return finding{good, "extension", text, ""}, true, nil
}

// objects checks that the extension's objects have the owners and privileges that the extension's script gives them.
func objects(ctx context.Context, conn *pgx.Conn) (finding, error) {
	strange, err := queue.Strange(ctx, conn)
	if err != nil {
		return finding{}, err
	}
	if len(strange) > 0 {
		return finding{
			bad, "objects", "not as the extension's script made them: " + strings.Join(strange, "; "),
			"Revoke or drop these. Until then the worker serves no queue and writes no journal in such a database.",
		}, nil
	}
	return finding{good, "objects", "owners and privileges are as the extension's script made them", ""}, nil
}

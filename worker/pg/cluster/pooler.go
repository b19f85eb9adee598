package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/ptrace/process"
)

// poolers has the names of connection poolers and proxies, by the name of their processes.
var poolers = map[string]string{
	"pgbouncer": "PgBouncer", "odyssey": "Odyssey", "pgpool": "Pgpool-II", "pgcat": "PgCat", "pgagroal": "pgagroal",
	"haproxy": "HAProxy", "pgdog": "PgDog", "supavisor": "Supavisor",
}

// PoolerError means that a connection leads to a connection pooler or proxy instead of a server. errors.Is(err,
// ErrPooler) holds.
type PoolerError struct {
	At     string   // the address of the connection
	Name   string   // the pooler's name; "" if it is unknown
	PID    int      // the pooler's process id; 0: unknown
	Server *Cluster // the server that the caller wanted; nil: unknown
	// Speaks is the pooler's own error, if the pooler was identified by it; else nil.
	Speaks error
}

// Error names the pooler, and the server's own address if Server has it.
func (e *PoolerError) Error() string {
	name := "a connection pooler"
	if e.Name != "" {
		name = "the connection pooler " + e.Name
	}
	if e.PID != 0 {
		name += fmt.Sprintf(" (process %d)", e.PID)
	}
	where := "the server itself"
	if c := e.Server; c != nil && c.SocketDir != "" {
		where += fmt.Sprintf(" (host=%s port=%d)", quoteBlank(c.SocketDir), c.Port)
	}
	return fmt.Sprintf("the connection to %s leads to %s; connect to %s", e.At, name, where)
}

// Is makes the error match ErrPooler.
func (e *PoolerError) Is(target error) bool { return target == ErrPooler }
func (e *PoolerError) Unwrap() error        { return e.Speaks }

func quoteBlank(value string) string {
	if strings.ContainsAny(value, blanks+`'\`) {
		return quoteValue(value)
	}
	return value
}

// place describes the first host of a configuration for messages: the path of a socket, or host and port.
func place(config *pgx.ConnConfig) string {
	if network, path := pgconn.NetworkAddress(config.Host, config.Port); network == networkUnix {
		return socketAddress(path)
	}
	return fmt.Sprintf("%s port %d", config.Host, config.Port)
}

// pooled converts an error that only poolers return to a PoolerError, and returns other errors unchanged. PgBouncer
// refuses settings in the startup packet.
func pooled(ctx context.Context, config *pgx.ConnConfig, err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && strings.HasPrefix(refusal.Message, "unsupported startup parameter") {
		found := &PoolerError{At: place(config), Name: "PgBouncer", Speaks: err}
		_, found.PID = listener(ctx, config)
		return found
	}
	return err
}

// checkPooler returns a PoolerError if the pid that the server sent at login is not the pid of the process that answers
// queries.
func checkPooler(ctx context.Context, conn *pgx.Conn, server *Cluster) error {
	var pid uint32
	if err := ask(ctx, conn, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return fmt.Errorf("asking the server for its process: %w", err)
	}
	if pid == conn.PgConn().PID() {
		return nil
	}
	found := &PoolerError{At: place(conn.Config()), Server: server}
	found.Name, found.PID = listener(ctx, conn.Config())
	return found
}

// ask runs a query as one message. A pooler may change the session between two messages, so ask cannot use prepared
// statements.
func ask(ctx context.Context, conn *pgx.Conn, sql string) pgx.Row {
	return conn.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol)
}

// listener finds the process that listens at the configured address, if it is a pooler and this process may see it.
func listener(ctx context.Context, config *pgx.ConnConfig) (name string, pid int) {
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	if network == networkUnix {
		return unixListener(ctx, socketAddress(address))
	}
	for _, inode := range listening(int(config.Port)) {
		if pid := holder(inode); pid != 0 {
			name, isPooler := poolerName(pid)
			if isPooler {
				return name, pid
			}
		}
	}
	return "", 0
}

func unixListener(ctx context.Context, path string) (name string, pid int) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, networkUnix, path)
	if err != nil {
		return "", 0
	}
	defer func() { _ = conn.Close() }()
	if pid, err = peerOf(conn); err != nil {
		return "", 0
	}
	if name, ok := poolerName(pid); ok {
		return name, pid
	}
	return "", 0
}

// poolerName returns the name of the pooler if the process is a known one.
func poolerName(pid int) (name string, ok bool) {
	status, err := process.ReadStatus(pid)
	if err != nil {
		return "", false
	}
	name, ok = poolers[status.Name]
	return name, ok
}

// tcpListen is the state of a listening socket in /proc/net/tcp, see proc(5).
const tcpListen = "0A"

// listening lists the inodes of the TCP sockets of this network namespace that listen on the port.
func listening(port int) []string {
	var inodes []string
	suffix := fmt.Sprintf(":%04X", port)
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const local, state, inode = 1, 3, 9
			fields := strings.Fields(lines.Text())
			if len(fields) > inode && fields[state] == tcpListen && strings.HasSuffix(fields[local], suffix) {
				inodes = append(inodes, fields[inode])
			}
		}
		_ = f.Close()
	}
	return inodes
}

// holder finds a process that has the socket open. It returns 0 if this process may see none.
func holder(inode string) int {
	wanted := "socket:[" + inode + "]"
	names, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is well formed
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil && target == wanted {
			pid, err := strconv.Atoi(strings.Split(name, "/")[2])
			if err == nil {
				return pid
			}
		}
	}
	return 0
}

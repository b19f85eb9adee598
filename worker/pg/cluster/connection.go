package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/ptrace/process"
)

// startSlack is the largest accepted difference between a server's start times in postmaster.pid and in
// pg_postmaster_start_time(). The server determines the second time after it has created its shared memory.
const startSlack = 2 * time.Minute

const sqlInsufficientPrivilege = "42501"

// Options configures the search for a server by Find.
type Options struct {
	// DataDir is the server's data directory. If it is empty, Find uses ConnString.
	DataDir string
	// ConnString is a libpq connection string (keyword/value or URI). Missing settings come from a service file, the
	// PG* environment and the defaults, in this order.
	ConnString string
	// Cluster, if not nil, gives host and port if the connection string has none. Host and port from PGHOST, PGPORT and
	// the service that PGSERVICE names are then ignored.
	Cluster *Cluster
	// Foreign means that the server may belong to any user of the host; see ConnOptions.Foreign.
	Foreign bool
}

// Find finds the server that Options describes, if possible without a login. It uses the data directory, or else the
// first unix socket of the connection string on which a postmaster listens. It logs in only if all hosts of the
// connection string are TCP hosts; see ByConnection.
func Find(ctx context.Context, o Options) (Cluster, error) {
	if o.DataDir != "" {
		return ByDataDir(o.DataDir)
	}
	config, err := parse(origin{
		text: o.ConnString, cluster: o.Cluster, named: o.Cluster != nil, foreign: o.Foreign,
	})
	if err != nil {
		return Cluster{}, err
	}
	paths, err := trusted(sockets(config))
	if err != nil {
		return Cluster{}, err
	}
	errs := make([]error, 0, len(paths))
	for _, path := range paths {
		c, err := BySocket(ctx, path)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return Cluster{}, errors.Join(errs...)
	}
	for _, name := range []string{"client_encoding", "standard_conforming_strings"} { // pgx needs them for ask, and poolers accept them
		config.RuntimeParams[name] = sessionSettings[name]
	}
	conn, err := Connect(ctx, config)
	if err != nil {
		return Cluster{}, adviseMethod(config, pooled(ctx, config, err))
	}
	defer func() { _ = conn.Close(ctx) }()
	return ByConnection(ctx, conn)
}

// sockets lists the unix sockets of a connection string, each once.
func sockets(config *pgx.ConnConfig) []string {
	hosts := []*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port}}
	var paths []string
	seen := make(map[string]bool)
	for _, h := range append(hosts, config.Fallbacks...) {
		network, path := pgconn.NetworkAddress(h.Host, h.Port)
		path = socketAddress(path)
		if network == networkUnix && !seen[path] {
			seen[path] = true
			paths = append(paths, path)
		}
	}
	return paths
}

// ByConnection finds the server of the session conn. Over a unix socket it uses the peer credentials. Over TCP, or if a
// proxy owns the socket, ByConnection asks the server for its data directory, which needs the privileges of
// pg_read_all_settings. The session's process must be a child of the postmaster found. Otherwise the session belongs to
// another server, for example on another machine with the same paths. The errors are those of Verify.
func ByConnection(ctx context.Context, conn *pgx.Conn) (Cluster, error) {
	var c Cluster
	err := ErrNotPostmaster
	if _, local := conn.PgConn().Conn().(*net.UnixConn); local {
		c, err = byPeer(conn.PgConn().Conn())
	}
	if errors.Is(err, ErrNotPostmaster) {
		c, err = bySetting(ctx, conn)
	}
	if err != nil {
		if behind := checkPooler(ctx, conn, nil); errors.Is(behind, ErrPooler) {
			err = behind
		}
		return Cluster{}, err
	}
	if err := c.Verify(ctx, conn); err != nil {
		return Cluster{}, err
	}
	return c, nil
}

// reportedDataDir returns the data directory that the server reports, byte for byte: the path need not be a text in the encoding of the
// session's database.
func reportedDataDir(ctx context.Context, conn *pgx.Conn) (string, error) {
	var text string // in hex: ask receives texts, and the text of a bytea depends on bytea_output
	err := ask(ctx, conn, "SELECT pg_catalog.encode("+RawText("pg_catalog.current_setting('data_directory')")+", 'hex')").Scan(&text)
	if err != nil {
		return "", err
	}
	dir, err := hex.DecodeString(text)
	return string(dir), err
}

func bySetting(ctx context.Context, conn *pgx.Conn) (Cluster, error) {
	dir, err := reportedDataDir(ctx, conn)
	var denied *pgconn.PgError
	if errors.As(err, &denied) && denied.Code == sqlInsufficientPrivilege {
		return Cluster{}, fmt.Errorf("asking the server for its data directory: %w; connect over a unix socket, name the "+
			"data directory, or grant pg_read_all_settings to role %q", err, conn.Config().User)
	}
	if err != nil {
		return Cluster{}, fmt.Errorf("asking the server for its data directory: %w", err)
	}
	return ByDataDir(dir)
}

// Verify returns an error unless conn is a session of this server. The session's process must be a child of the
// postmaster, and the start times must agree. The error is a WrongClusterError, a PoolerError, or the error of a
// query.
func (c Cluster) Verify(ctx context.Context, conn *pgx.Conn) error {
	pid := int(conn.PgConn().PID())
	if err := checkPooler(ctx, conn, &c); err != nil {
		return err
	}
	stat, err := process.ReadStat(c.Local(pid))
	if process.LacksResources(err) {
		return fmt.Errorf("the process of the session: %w", err)
	}
	if err != nil || stat.PPID != c.PostmasterPID || !c.Alive() {
		return &WrongClusterError{Want: c, Got: describe(ctx, conn)}
	}
	var started time.Time
	if err := ask(ctx, conn, "SELECT pg_catalog.pg_postmaster_start_time()").Scan(&started); err != nil {
		return fmt.Errorf("asking the server when it was started: %w", err)
	}
	if started.Sub(c.Started).Abs() > startSlack {
		return &WrongClusterError{Want: c, Got: describe(ctx, conn)}
	}
	return nil
}

// describe names the server of a connection in a message, as precisely as possible.
func describe(ctx context.Context, conn *pgx.Conn) string {
	if c, err := byPeer(conn.PgConn().Conn()); err == nil {
		return c.String()
	}
	config := conn.Config()
	at := fmt.Sprintf("the server at %s port %d", hostOf(config.Host), config.Port)
	dir, err := reportedDataDir(ctx, conn)
	if err != nil {
		return at
	}
	return fmt.Sprintf("%s, whose data directory is %s", at, dir)
}

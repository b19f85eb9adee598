package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
)

// psql returns a command that runs statements in a database as a superuser. Each statement gets its own option -c and
// so its own transaction, because ALTER SYSTEM cannot run in a larger one.
func psql(c cluster.Cluster, host, superuser, database string, statements ...string) string {
	var b strings.Builder
	b.WriteString("psql")
	if c.SocketDir != "" && c.Root == "" {
		host = c.SocketDir
	}
	if host != "" {
		b.WriteString(" -h " + render.ShellWord(host))
	}
	if c.Port != 0 {
		b.WriteString(" -p " + strconv.Itoa(c.Port))
	}
	if superuser != "" {
		b.WriteString(" -U " + render.ShellWord(superuser))
	}
	b.WriteString(" -d " + render.ShellWord(database))
	for _, s := range statements {
		b.WriteString(` -c "` + s + `"`)
	}
	return b.String()
}

// place has the facts about a connection that remedies by SQL need.
type place struct {
	c                         cluster.Cluster
	host, database, superuser string
	recovery                  bool
	primary                   string // host and port of a standby's primary; empty: not known
}

// receiveRaw makes the server send all texts as they are, unless it can convert the names of all databases and roles. These have the
// encoding of the database in which they were given. The server would refuse to convert a byte that has no equivalent, and the checks
// would end.
func receiveRaw(ctx context.Context, conn *pgx.Conn) error {
	if conn.PgConn().ParameterStatus("server_encoding") == "UTF8" {
		return nil // the server does not convert
	}
	_, err := conn.Exec(ctx, `SELECT pg_catalog.convert_to(datname::text, 'UTF8') FROM pg_catalog.pg_database
		UNION ALL SELECT pg_catalog.convert_to(rolname::text, 'UTF8') FROM pg_catalog.pg_roles`)
	if err == nil {
		return nil
	}
	if _, err := conn.Exec(ctx, "SET client_encoding = 'SQL_ASCII'"); err != nil {
		return fmt.Errorf("setting client_encoding: %w", err)
	}
	return nil
}

// placeOf reads the facts about a connection. It also makes the server send all texts of this connection as they are.
func placeOf(ctx context.Context, conn *pgx.Conn, c cluster.Cluster) (p place, err error) {
	p = place{c: c, host: conn.Config().Host}
	if err := receiveRaw(ctx, conn); err != nil {
		return p, err
	}
	err = conn.QueryRow(ctx, `SELECT current_database(), pg_catalog.pg_is_in_recovery(),
		coalesce((SELECT rolname FROM pg_catalog.pg_roles WHERE rolsuper AND rolcanlogin ORDER BY oid LIMIT 1), ''),
		coalesce((SELECT sender_host || ', port ' || sender_port FROM pg_catalog.pg_stat_wal_receiver), '')`).
		Scan(&p.database, &p.recovery, &p.superuser, &p.primary)
	return p, err
}

// psql returns a command that runs statements on this server, in the database of the connection.
func (p *place) psql(statements ...string) string {
	return psql(p.c, p.host, p.superuser, p.database, statements...)
}

// change returns the remedy for a statement that only a primary can run. For a standby it says to run the statement on
// the primary, which replicates the effect.
func (p *place) change(statement string) string {
	if !p.recovery {
		return p.psql(statement)
	}
	primary := ""
	if p.primary != "" {
		primary = " (" + p.primary + ")"
	}
	return fmt.Sprintf(`This server is a standby: run this on its primary%s, which replicates it: psql -d %s -c "%s"`,
		primary, render.ShellWord(p.database), statement)
}

// missing returns the remedy for an extension that no database has.
func (p *place) missing(ctx context.Context, conn *pgx.Conn) (string, error) {
	var available bool
	err := conn.QueryRow(ctx,
		`SELECT EXISTS (SELECT FROM pg_catalog.pg_available_extensions WHERE name = 'pg_stat_backtrace')`).Scan(&available)
	remedy := p.change("CREATE EXTENSION pg_stat_backtrace") + "  # or in each other database from which stacks are asked for"
	if !available {
		remedy = "First install the extension's files for this server: the package for its major version, or make install. Then: " + remedy
	}
	return remedy, err
}

// elsewhere searches up to 20 other databases for the extension, and makes the checks in the first database that has
// it. found is false if no database that accepted a connection has the extension.
func elsewhere(ctx context.Context, conn *pgx.Conn, c cluster.Cluster) (list []finding, found bool) {
	const most = 20
	rows, err := conn.Query(ctx, `SELECT `+cluster.RawText("datname")+` FROM pg_catalog.pg_database
		WHERE datallowconn AND datname <> current_database() AND pg_catalog.has_database_privilege(oid, 'CONNECT')
		ORDER BY datistemplate, datname LIMIT $1`, most)
	if err != nil {
		return nil, false
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, false
	}
	for _, name := range names {
		config := conn.Config().Copy()
		config.Database = string(name)
		other, err := cluster.Connect(ctx, config)
		if err != nil {
			continue // for example a limit of connections, or the authentication
		}
		list, found, err = ofDatabase(ctx, other, c)
		_ = other.Close(ctx)
		if err == nil && found {
			return list, true
		}
	}
	return nil, false
}

// ofDatabase makes the checks of the extension in the database of a connection. The second result is false if the
// database does not have the extension.
func ofDatabase(ctx context.Context, conn *pgx.Conn, c cluster.Cluster) ([]finding, bool, error) {
	p, err := placeOf(ctx, conn, c)
	if err != nil {
		return nil, false, err
	}
	found, err := seen(ctx, conn, c)
	if err != nil {
		return nil, false, err
	}
	version, installed, err := extension(ctx, conn, &p)
	if err != nil || !installed {
		return found, false, err
	}
	found = append(found, version)
	compared, err := objects(ctx, conn)
	if err != nil {
		return found, true, err
	}
	may, err := roles(ctx, conn, &p)
	if err != nil {
		return append(found, compared), true, err
	}
	return append(found, compared, may), true, nil
}

// fullRemedy returns what to do if the server has no connection slot for the worker, or "" if err has another reason.
func fullRemedy(c cluster.Cluster, err error) string {
	if !cluster.NoSlot(err) {
		if errors.Is(err, cluster.ErrScarce) {
			return "The worker leaves the last connection to others. Raise that CONNECTION LIMIT (ALTER DATABASE or ALTER ROLE), or set it to -1."
		}
		return ""
	}
	return "End sessions that are idle. A superuser has slots of its own (superuser_reserved_connections): " +
		psql(c, "", "", "postgres", "SELECT pid, usename, application_name, state, state_change FROM pg_stat_activity "+
			"WHERE state LIKE 'idle%' ORDER BY state_change") + ", then SELECT pg_terminate_backend(PID). " +
		"If a superuser cannot connect either: pg_stat_backtrace activity -D " + render.ShellWord(c.DataDir) + " --sort state lists the " +
		"sessions without a connection, and kill PID ends one. A worker with --fallback-connection user=NAME, a role with REPLICATION, " +
		"has a connection all the same."
}

// serverRemedy returns what to do if the server was not found or may not be examined.
func serverRemedy(err error, o Options, root bool) string {
	denied := errors.Is(err, cluster.ErrWrongUser) || errors.Is(err, cluster.ErrNoAccess)
	switch {
	case denied && root:
		return "Root lacks a capability here, as in a container: grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH."
	case denied:
		command := "sudo pg_stat_backtrace doctor"
		if o.DataDir != "" {
			command += " -D " + render.ShellWord(o.DataDir)
		}
		if o.ConnString != "" {
			command += " " + render.ShellWord(o.ConnString)
		}
		return "Run it as the server's operating system user, or as root: " + command
	}
	remedy := "Name its data directory with -D, or a connection string that leads to it."
	var single *cluster.SingleUserError
	switch {
	case errors.As(err, &single):
		remedy = fmt.Sprintf("Only this process runs: pg_stat_backtrace capture %[1]d, plan %[1]d and memory %[1]d show it.", single.PID)
	case errors.Is(err, cluster.ErrNotRunning):
		remedy = "Start the server: captures need its processes."
	}
	var servers []string
	if o.Servers != nil {
		servers = o.Servers()
	}
	const most = 5
	for i, dir := range servers {
		switch {
		case i == 0:
			remedy += " These run here: -D " + render.ShellWord(dir)
		case i == most:
			return remedy + fmt.Sprintf(" and %d more", len(servers)-most)
		default:
			remedy += ", -D " + render.ShellWord(dir)
		}
	}
	return remedy
}

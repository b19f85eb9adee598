package pgcluster

import (
	"context"
	"maps"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/host/rootfs"
)

const (
	applicationName = "pg_stat_backtrace"
	defaultDatabase = "postgres"
)

// sessionSettings keep whatever a database or a role has set for its sessions from changing what the worker's queries
// mean, or from ending its session. They are sent when the session starts, which outranks ALTER ROLE … SET.
var sessionSettings = map[string]string{
	"application_name":                    applicationName,
	"search_path":                         "pg_catalog",
	"default_transaction_read_only":       "on",
	"default_transaction_isolation":       "read committed",
	"default_transaction_deferrable":      "off",
	"idle_session_timeout":                "0",
	"idle_in_transaction_session_timeout": "10s",
	"lock_timeout":                        "0",
	"jit":                                 "off",
	"client_encoding":                     "UTF8",
}

// parseConnString turns a libpq connection string into a configuration of the worker's connection. Host and port come
// from the cluster, if there is one, where neither the string, a service nor the environment has them.
func parseConnString(connString string, c *Cluster) (*pgx.ConnConfig, error) {
	if c != nil {
		connString = withServer(connString, *c)
	}
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, err
	}
	if config.Database == "" {
		config.Database = defaultDatabase
	}
	maps.Copy(config.RuntimeParams, sessionSettings)
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return rootfs.Dial(ctx, network, addr, dial)
	}
	guardLogin(config, connString, c)
	return config, nil
}

// SessionConfig is the configuration of a session in the given database, for a job of its own beside the worker's main
// session: it may write, and ends when it has not answered. Connection string and cluster are those of ConnOptions.
func SessionConfig(connString string, c *Cluster, database string) (*pgx.ConnConfig, error) {
	config, err := parseConnString(connString, c)
	if err != nil {
		return nil, err
	}
	config.Database = database
	maps.Copy(config.RuntimeParams, map[string]string{
		"application_name":                    applicationName + " worker",
		"default_transaction_read_only":       "off",
		"statement_timeout":                   "30s",
		"idle_in_transaction_session_timeout": "30s",
		"synchronous_commit":                  "local", // a standby that is gone holds up nobody
		"client_min_messages":                 "warning",
	})
	return config, nil
}

var (
	serviceWord = regexp.MustCompile(`(^|\s)service\s*=`)
	hostWord    = regexp.MustCompile(`(^|\s)host(addr)?\s*=`)
	portWord    = regexp.MustCompile(`(^|\s)port\s*=`)
)

// withServer adds the socket directory and port of c to a connection string, each unless something else gives it.
func withServer(connString string, c Cluster) string {
	if c.SocketDir == "" || c.Port == 0 || inEnvironment("PGSERVICE") {
		return connString
	}
	host, port := !inEnvironment("PGHOST"), !inEnvironment("PGPORT")
	if strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://") {
		return uriWithServer(connString, c, host, port)
	}
	if serviceWord.MatchString(connString) || hostWord.MatchString(connString) {
		return connString
	}
	if host {
		connString = strings.TrimSpace(connString + " host=" + quoteValue(c.SocketDir))
	}
	if host && port && !portWord.MatchString(connString) {
		connString += " port=" + strconv.Itoa(c.Port)
	}
	return connString
}

func uriWithServer(uri string, c Cluster, host, port bool) string {
	u, err := url.Parse(uri)
	if err != nil || u.Host != "" {
		return uri // pgx reports what is wrong with it
	}
	query := u.Query()
	if !host || query.Has("host") || query.Has("hostaddr") || query.Has("service") {
		return uri
	}
	query.Set("host", c.SocketDir)
	if port && !query.Has("port") {
		query.Set("port", strconv.Itoa(c.Port))
	}
	u.RawQuery = query.Encode()
	return u.String()
}

func inEnvironment(name string) bool { return os.Getenv(name) != "" }

// quoteValue quotes a value of a keyword/value connection string.
func quoteValue(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// majorVersion is the major version in the server_version that the server reported, 0 when there is none.
func majorVersion(conn *pgconn.PgConn) int {
	version := conn.ParameterStatus("server_version")
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(version)
	}
	major, err := strconv.Atoi(version[:end])
	if err != nil {
		return 0
	}
	return major
}

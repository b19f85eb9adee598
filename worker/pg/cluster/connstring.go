package cluster

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// ApplicationName begins the application_name of each session of this program.
const ApplicationName = "pg_stat_backtrace"

const defaultDatabase = "postgres"

// sessionSettings override settings of a database or role that could change the meaning of the worker's queries or
// end its session. They are sent when the session starts, and so have priority over ALTER ROLE … SET.
var sessionSettings = map[string]string{
	"application_name":                    ApplicationName,
	"search_path":                         "pg_catalog",
	"default_transaction_read_only":       "on",
	"default_transaction_isolation":       "read committed",
	"default_transaction_deferrable":      "off",
	"idle_session_timeout":                "0",
	"idle_in_transaction_session_timeout": "10s",
	"lock_timeout":                        "0",
	"jit":                                 "off",
	"client_encoding":                     "UTF8",
	"standard_conforming_strings":         "on",  // pgx refuses simple queries without it
	"quote_all_identifiers":               "off", // the worker compares definitions of the extension's objects
	"bytea_output":                        "hex", // pgx reads no other text of a bytea at the fallback connection
}

// RawText returns an SQL expression for the bytes of a name or text. The server would convert the text itself to UTF-8, and fail if
// a byte has no equivalent.
func RawText(column string) string {
	return `pg_catalog.decode(pg_catalog.replace(` + column + `::pg_catalog.text, E'\\', E'\\\\'), 'escape')`
}

// origin has the sources of connection settings: a connection string, and the server that was found.
type origin struct {
	text string
	// over is the connection string of the fallback; empty: none. Its settings override those of text; see overlay. replication
	// is set for the fallback connection.
	over        string
	replication bool
	cluster     *Cluster // source of host and port if no other source has them; nil: not found yet
	// named means that the user has named the server by its data directory. Host and port from the environment are then
	// ignored.
	named bool
	// foreign means that the server may belong to any user. The server gets no password in clear text or as MD5, unless
	// require_auth names that method.
	foreign bool
}

// CheckConnString returns an error if a connection string or the PG* environment variables are invalid. It reads no
// file and does not connect. The error wraps ErrConnString.
func CheckConnString(text string) error {
	s, err := parseText(text)
	if err != nil {
		return err
	}
	s.fill(environment())
	if err := s.check(); err != nil {
		return err
	}
	_, err = s.addresses()
	return err
}

// NamesServer returns the first of the keywords host, hostaddr, port and service that a connection string has with a
// value; empty: it has none of them, or is invalid. A string with one of these keywords says which server to connect
// to.
func NamesServer(text string) (keyword string) {
	s, err := parseText(text)
	if err != nil {
		return ""
	}
	return s.namesServer()
}

func (s settings) namesServer() (keyword string) {
	for _, name := range []string{"host", "hostaddr", "port", "service"} {
		if s[name] != "" {
			return name
		}
	}
	return ""
}

// parseConnString converts connection settings to a configuration of the worker's connection. notes are warnings about
// the password file.
func parseConnString(o origin) (config *pgx.ConnConfig, notes []string, err error) {
	if config, err = parse(o); err != nil {
		return nil, nil, err
	}
	maps.Copy(config.RuntimeParams, sessionSettings)
	if s, _, err := gather(o); err == nil && s["password"] == "" {
		if _, note := s.passfile(); note != "" {
			notes = []string{note}
		}
	}
	return config, notes, nil
}

// maxMessage bounds a message of the server, in bytes. pgx allocates as many bytes as the header of a message
// announces, and worker --all connects to servers of any user. A row that the worker reads has some megabytes at most.
const maxMessage = 64 << 20

// parse converts connection settings to a configuration. The sources are, in descending priority as in libpq: the connection
// string, its service (or PGSERVICE), the environment, the cluster. pgx parses only the settings that it treats as libpq does.
func parse(o origin) (*pgx.ConnConfig, error) {
	s, service, err := gather(o)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, err
	}
	addresses, err := s.addresses()
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(s.text(service))
	if err != nil {
		return nil, connError("%s", parseProblem(err))
	}
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		frontend := pgproto3.NewFrontend(r, w)
		frontend.SetMaxBodyLen(maxMessage)
		return frontend
	}
	config.RuntimeParams = map[string]string{"application_name": ApplicationName}
	for name, value := range map[string]string{
		"options": s["options"], "timezone": os.Getenv("PGTZ"), "datestyle": os.Getenv("PGDATESTYLE"),
	} {
		if value != "" {
			config.RuntimeParams[name] = value
		}
	}
	if config.Database == "" {
		config.Database = defaultDatabase
	}
	if config.Password == "" {
		config.Password = s.passwordFor(config, config.Database)
	}
	limitTLS(config, s)
	s.setDial(config)
	config.LookupFunc = addresses.lookup(config.LookupFunc)
	guardLogin(config, s["password"] != "", o)
	return config, nil
}

// parseProblem returns the cause in an error about connection settings. It leaves out the settings, which the text of pgx's
// error repeats. These also include settings that this package has added.
func parseProblem(err error) string {
	text := err.Error()
	var parse *pgconn.ParseConfigError
	if i := strings.LastIndex(text, "`: "); errors.As(err, &parse) && i >= 0 {
		return "invalid connection settings: " + text[i+3:]
	}
	return text
}

// gather merges the settings of all sources. service is the path of the file that defines the service, or "".
func gather(o origin) (s settings, service string, err error) {
	if s, err = overlay(o.over, o.text); err != nil {
		return nil, "", err
	}
	if o.replication {
		if err := s.replicates(); err != nil {
			return nil, "", err
		}
	}
	_, explicit := s["service"]
	env := environment()
	for _, name := range []string{"service", "servicefile"} {
		if _, given := s[name]; !given && env[name] != "" {
			s[name] = env[name]
		}
	}
	if name := s["service"]; name != "" {
		found, file, err := readService(s, name)
		if err != nil {
			return nil, "", err
		}
		service = file
		if o.named && !explicit {
			found.leaveServer()
		}
		s.fill(found)
	}
	if o.named {
		env.leaveServer()
	}
	s.fill(env)
	s.fillServer(o)
	return s, service, nil
}

// overlay merges two connection strings. The settings of over have priority. If over names a server, overlay drops host,
// port and service of text. If over names a user, it drops the password of text.
func overlay(over, text string) (settings, error) {
	s, err := parseText(over)
	if err != nil {
		return nil, err
	}
	rest, err := parseText(text)
	if err != nil {
		return nil, err
	}
	if s.namesServer() != "" {
		rest.leaveServer()
		delete(rest, "service")
		delete(rest, "servicefile")
	}
	if s["user"] != "" {
		delete(rest, "password")
	}
	s.fill(rest)
	return s, nil
}

// fillServer takes host and port from the cluster if no other source has them. If another source has a host, fillServer
// takes only the port, and only if the user has named the server (origin.named): the host then leads to that server.
func (s settings) fillServer(o origin) {
	c := o.cluster
	if c == nil || c.Port == 0 {
		return
	}
	switch {
	case s["host"] != "" || s["hostaddr"] != "":
		if !o.named {
			return
		}
	case c.SocketDir != "":
		s["host"] = c.SocketDir
	case o.named: // the server has no socket
		s["host"], s["hostaddr"] = tcpHost(c.Address)
	default:
		return
	}
	if s["port"] == "" {
		s["port"] = strconv.Itoa(c.Port)
	}
}

// tcpHost returns a host, and its numeric addresses, for connections to a server with the given address in
// postmaster.pid. An address that stands for all interfaces is replaced by the loopback address of its family. If
// numeric is empty, the host has to be looked up.
func tcpHost(address string) (host, numeric string) {
	const local = "localhost" // the name that certificates and password files have
	if address == "" {
		return local, ""
	}
	if address == "*" {
		return local + "," + local, "127.0.0.1,::1"
	}
	if ip := net.ParseIP(address); ip != nil && ip.IsUnspecified() {
		if ip.To4() != nil {
			return local, "127.0.0.1"
		}
		return local, "::1"
	}
	return address, ""
}

// fill adds the settings that s lacks from the parameter from, a source with lower priority.
func (s settings) fill(from settings) {
	for name, value := range from {
		if _, given := s[name]; !given {
			s[name] = value
		}
	}
}

// leaveServer removes the settings for host and port.
func (s settings) leaveServer() {
	for _, name := range []string{"host", "hostaddr", "port"} {
		delete(s, name)
	}
}

// environment returns the settings in libpq's environment variables, without empty ones.
func environment() settings {
	s := settings{}
	for name, k := range keywords {
		if k.env == "" {
			continue
		}
		if value := os.Getenv(k.env); value != "" {
			s[name] = value
		}
	}
	return s
}

// text makes a connection string for pgx. The string contains all settings that pgx would otherwise read from the
// environment or the service. pgx reads the service file again if PGSERVICE is set.
func (s settings) text(service string) string {
	// No password file for pgx, because passwordFor reads it.
	values := map[string]string{"passfile": os.DevNull, "port": s["port"]}
	if s["service"] != "" {
		values["service"], values["servicefile"] = s["service"], service
	}
	for name, k := range keywords {
		if value, given := s[name]; given && k.use == passed && (value != "" || os.Getenv(k.env) != "") {
			values[name] = value
		}
	}
	hosts := s.names()
	for i := range hosts {
		hosts[i] = pgxHost(hosts[i])
	}
	if !strings.Contains(s["port"], ",") {
		hosts = slices.Compact(hosts) // one of equal hosts is enough: the lookup returns the addresses of all; see addresses
	}
	values["host"] = strings.Join(hosts, ",")
	var b strings.Builder
	for name, value := range values {
		b.WriteString(name + "=" + quoteValue(value) + " ")
	}
	return b.String()
}

// quoteValue quotes a value of a keyword/value connection string.
func quoteValue(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// SessionConfig returns the configuration of another session in the given database, beside the worker's main session.
// The session may write, and its statements have a timeout of 30 s. o are the options of the main session.
func SessionConfig(o ConnOptions, database string) (*pgx.ConnConfig, error) {
	source := o.origin()
	config, _, err := parseConnString(source)
	if err != nil {
		return nil, err
	}
	if config.Database != database {
		config.Database = database
		s, _, err := gather(source)
		if err != nil {
			return nil, err
		}
		// The password file may have another password for this database. For a server below another root, see
		// guardLogin.
		if s["password"] == "" && (o.Cluster == nil || o.Cluster.Root == "") {
			config.Password = s.passwordFor(config, database)
		}
	}
	maps.Copy(config.RuntimeParams, map[string]string{
		"application_name":                    ApplicationName + " worker",
		"default_transaction_read_only":       "off",
		"statement_timeout":                   "30s",
		"idle_in_transaction_session_timeout": "30s",
		"synchronous_commit":                  "local", // do not wait for a standby
		"client_min_messages":                 "warning",
	})
	return config, nil
}

// ReadingConfig returns the configuration of a short session that only reads, in the database of the connection string.
// program is added to its application_name. o are the options of the main session.
func ReadingConfig(o ConnOptions, program string) (*pgx.ConnConfig, error) {
	config, _, err := parseConnString(o.origin())
	if err != nil {
		return nil, err
	}
	maps.Copy(config.RuntimeParams, map[string]string{
		"application_name":                    ApplicationName + " " + program,
		"default_transaction_read_only":       "on",
		"statement_timeout":                   "30s",
		"idle_in_transaction_session_timeout": "30s",
		"client_min_messages":                 "warning",
	})
	return config, nil
}

// majorVersion returns the major version in the server_version that the server reported at login, or 0 if it reported
// none.
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

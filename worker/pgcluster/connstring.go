package pgcluster

import (
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// origin says where connection settings come from: a connection string, and the server that was found.
type origin struct {
	text    string
	cluster *Cluster // gives host and port where nothing else does; nil: not found yet
	// named: a data directory names the server. The environment then gives no host and no port.
	named bool
}

// CheckConnString reports what is wrong with a connection string or with the PG* variables of the environment, without
// reading a file and without connecting. The error wraps ErrConnString.
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

// parseConnString turns connection settings into a configuration of the worker's connection, with warnings.
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

// parse turns connection settings into a configuration, in the way of libpq: the string first, then the service that it
// or PGSERVICE names, then the environment, then the cluster. pgx parses only what it knows as libpq does.
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
		return nil, connError("%w", err)
	}
	config.RuntimeParams = map[string]string{"application_name": applicationName}
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
	guardLogin(config, s["password"] != "", o.cluster)
	return config, nil
}

// gather merges the sources of settings. Service is the file that defines the service, if there is one.
func gather(o origin) (s settings, service string, err error) {
	if s, err = parseText(o.text); err != nil {
		return nil, "", err
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

// fillServer takes host and port from the cluster where no source gives a host.
func (s settings) fillServer(o origin) {
	c := o.cluster
	if c == nil || c.Port == 0 || s["host"] != "" || s["hostaddr"] != "" {
		return
	}
	switch {
	case c.SocketDir != "":
		s["host"] = c.SocketDir
	case o.named: // it has no socket
		s["host"] = "localhost"
	default:
		return
	}
	if s["port"] == "" {
		s["port"] = strconv.Itoa(c.Port)
	}
}

// fill takes the settings of a source of less weight.
func (s settings) fill(from settings) {
	for name, value := range from {
		if _, given := s[name]; !given {
			s[name] = value
		}
	}
}

// leaveServer removes what says where the server is.
func (s settings) leaveServer() {
	for _, name := range []string{"host", "hostaddr", "port"} {
		delete(s, name)
	}
}

// environment reads libpq's variables.
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

// text makes a connection string for pgx. It names everything that pgx would otherwise take from the environment or
// from the service, whose file pgx reads once more if PGSERVICE makes it.
func (s settings) text(service string) string {
	// The password file is looked up by passwordFor.
	values := map[string]string{"passfile": os.DevNull, "host": s["host"], "port": s["port"]}
	if s["service"] != "" {
		values["service"], values["servicefile"] = s["service"], service
	}
	for name, k := range keywords {
		if value, given := s[name]; given && k.use == passed && (value != "" || os.Getenv(k.env) != "") {
			values[name] = value
		}
	}
	if s["hostaddr"] != "" {
		values["host"] = strings.Join(s.names(), ",")
	}
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

// SessionConfig is the configuration of a session in the given database, for a job of its own beside the worker's main
// session: it may write, and ends when it has not answered. The options are those of the main session.
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
		// The password file may have another one for this database; see guardLogin for a server below another root.
		if s["password"] == "" && (o.Cluster == nil || o.Cluster.Root == "") {
			config.Password = s.passwordFor(config, database)
		}
	}
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

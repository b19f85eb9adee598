package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// clearEnvironment hides the tester's own settings from pgx.
func clearEnvironment(t *testing.T) {
	for _, k := range keywords {
		if k.env != "" {
			t.Setenv(k.env, "") // which restores it
			_ = os.Unsetenv(k.env)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PGSYSCONFDIR", t.TempDir())
}

// write makes a file with these permissions, and returns its path.
func write(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

type env = map[string]string

var known = &Cluster{SocketDir: "/run/it's", Port: 6000}

// parseCases are tried by TestParseConnString, which puts a service file in the place of SVC.
var parseCases = map[string]struct {
	text     string
	cluster  *Cluster
	named    bool
	env      map[string]string
	host     string
	port     uint16
	database string
}{
	"the cluster's socket":         {"", known, false, nil, "/run/it's", 6000, "postgres"},
	"keywords without a host":      {"user=x", known, false, nil, "/run/it's", 6000, "postgres"},
	"keywords with a port":         {"port=7", known, false, nil, "/run/it's", 7, "postgres"},
	"keywords with a host":         {"host=h user=x", known, false, nil, "h", 5432, "postgres"},
	"blanks and quotes":            {" host = '/a b\\'' user='' port =9", known, false, nil, "/a b'", 9, "postgres"},
	"a word that ends in host":     {"password=host", known, false, nil, "/run/it's", 6000, "postgres"},
	"a database":                   {"dbname=d", known, false, nil, "/run/it's", 6000, "d"},
	"a URI without a host":         {"postgres:///d?user=x", known, false, nil, "/run/it's", 6000, "d"},
	"a URI with a port":            {"postgresql:///?port=7", known, false, nil, "/run/it's", 7, "postgres"},
	"a URI with a host":            {"postgres://h/d", known, false, nil, "h", 5432, "d"},
	"a URI with a socket":          {"postgres://%2Fs:7/d", known, false, nil, "/s", 7, "d"},
	"a URI with IPv6":              {"postgres://u:p@[::1]:7/d", known, false, nil, "::1", 7, "d"},
	"a URI with a host elsewhere":  {"postgres:///d?host=/s", known, false, nil, "/s", 5432, "d"},
	"host from the envment":        {"", known, false, env{"PGHOST": "/env"}, "/env", 5432, "postgres"},
	"port from the envment":        {"", known, false, env{"PGPORT": "7"}, "/run/it's", 7, "postgres"},
	"database in the envment":      {"", known, true, env{"PGDATABASE": "e"}, "/run/it's", 6000, "e"},
	"no cluster":                   {"host=/s port=9", nil, false, nil, "/s", 9, "postgres"},
	"a cluster that has no socket": {"host=/s", &Cluster{Port: 6000}, false, nil, "/s", 5432, "postgres"},
	"hostaddr alone":               {"hostaddr=127.0.0.1", known, false, nil, "127.0.0.1", 5432, "postgres"},
	"hostaddr beats a socket":      {"host=/s hostaddr=127.0.0.1", known, false, nil, "127.0.0.1", 5432, "postgres"},

	"service":             {"service=main", known, false, env{"PGSERVICEFILE": "SVC"}, "/service", 9, "s"},
	"a service's URI":     {"postgres:///x?service=main", known, true, env{"PGSERVICEFILE": "SVC"}, "/service", 9, "x"},
	"service, no host":    {"service=hostless", known, false, env{"PGSERVICEFILE": "SVC"}, "/run/it's", 6000, "less"},
	"service and keyword": {"service=main port=3", known, false, env{"PGSERVICEFILE": "SVC"}, "/service", 3, "s"},
	"PGSERVICE and PGHOST": {
		"", known, false, env{"PGSERVICEFILE": "SVC", "PGSERVICE": "main", "PGHOST": "/e"}, "/service", 9, "s",
	},
	// With a data directory, the environment cannot lead to another server.
	"-D and PGHOST": {"", known, true, env{"PGHOST": "/e", "PGPORT": "7"}, "/run/it's", 6000, "postgres"},
	"-D and PGHOSTADDR": {
		"user=x", known, true, env{"PGHOSTADDR": "127.0.0.1"}, "/run/it's", 6000, "postgres",
	},
	"-D and PGPORT":  {"", known, true, env{"PGPORT": "7"}, "/run/it's", 6000, "postgres"},
	"-D and a host":  {"host=h", known, true, env{"PGPORT": "7"}, "h", 6000, "postgres"},
	"-D, host, port": {"host=h port=8", known, true, nil, "h", 8, "postgres"},
	"-D, hostaddr":   {"hostaddr=127.0.0.1", known, true, nil, "127.0.0.1", 6000, "postgres"},
	"-D, no socket":  {"", &Cluster{Port: 6000}, true, env{"PGHOST": "/e"}, "localhost", 6000, "postgres"},
	"-D and service": {"", known, true, env{"PGSERVICEFILE": "SVC", "PGSERVICE": "main"}, "/run/it's", 6000, "s"},
}

// TestServersOwnAddress has the addresses that a server can have in postmaster.pid.
func TestServersOwnAddress(t *testing.T) {
	clearEnvironment(t)
	for address, want := range map[string]string{
		"":            "localhost []",
		"127.0.0.2":   "127.0.0.2 []",
		"::1":         "::1 []",
		"fe80::1%lo":  "fe80::1%lo []",
		"db.internal": "db.internal []",
		"localhost":   "localhost []",
		"*":           "localhost [127.0.0.1 ::1]",
		"0.0.0.0":     "localhost [127.0.0.1]",
		"::":          "localhost [::1]",
		"0:0:0:0::":   "localhost [::1]",
	} {
		config, _, err := parseConnString(origin{cluster: &Cluster{Port: 6000, Address: address}, named: true})
		if err != nil {
			t.Fatal(err)
		}
		// Only a name with known addresses is not looked up.
		lookup := hostaddrs{}.lookup(func(context.Context, string) ([]string, error) { return nil, nil })
		if strings.HasPrefix(want, "localhost [1") || strings.HasPrefix(want, "localhost [:") {
			lookup = config.LookupFunc
		}
		found, err := lookup(t.Context(), config.Host)
		if got := fmt.Sprint(config.Host, " ", found); got != want || err != nil || config.Port != 6000 {
			t.Errorf("%q: %s port %d, %v, want %s", address, got, config.Port, err, want)
		}
		for _, other := range config.Fallbacks {
			if other.Host != config.Host {
				t.Errorf("%q: also %s", address, other.Host)
			}
		}
	}
}

// TestAbstractSockets compares the addresses that are dialled with those of libpq.
func TestAbstractSockets(t *testing.T) {
	clearEnvironment(t)
	for host, want := range map[string]string{
		"@pg":          "@pg/.s.PGSQL.6000",
		"@":            "@/.s.PGSQL.6000",
		"@a/b":         "@a/b/.s.PGSQL.6000",
		"@a/../b//c/.": "@a/../b//c/./.s.PGSQL.6000",
		"@50% off 'x'": "@50% off 'x'/.s.PGSQL.6000",
		"@%2F":         "@%2F/.s.PGSQL.6000",
		"@@é":          "@@é/.s.PGSQL.6000",
		"/@dir":        "/proc/self/root/@dir/.s.PGSQL.6000",
		"//.//@dir":    "/proc/self/root/@dir/.s.PGSQL.6000",
		"/run/@x":      "/run/@x/.s.PGSQL.6000",
	} {
		for source, o := range map[string]origin{
			"string":  {text: "port=6000 sslmode=require host=" + quoteValue(host)},
			"URI":     {text: "postgres:///?sslmode=require&port=6000&host=" + url.QueryEscape(host)},
			"cluster": {cluster: &Cluster{Port: 6000, SocketDir: host}, named: true},
		} {
			o.text = strings.ReplaceAll(o.text, "+", "%20") // a plus sign stands for itself in libpq
			config, _, err := parseConnString(o)
			if err != nil {
				t.Fatal(err)
			}
			if got := sockets(config); !slices.Equal(got, []string{want}) || config.TLSConfig != nil {
				t.Errorf("%s from the %s: %q, TLS %v, want %q", host, source, got, config.TLSConfig != nil, want)
			}
			if at := place(config); at != want {
				t.Errorf("%s is called %q in messages", host, at)
			}
		}
	}
}

func TestParseConnString(t *testing.T) {
	clearEnvironment(t)
	service := write(t, filepath.Join(t.TempDir(), "services"),
		"# comment\n[other]\nhost=/o\n[main]\nhost=/service\nport=9\ndbname=s\n[hostless]\ndbname=less\n", 0o644)
	for name, test := range parseCases {
		t.Run(name, func(t *testing.T) {
			for key, value := range test.env {
				t.Setenv(key, strings.ReplaceAll(value, "SVC", service))
			}
			config, _, err := parseConnString(origin{text: test.text, cluster: test.cluster, named: test.named})
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != test.host || config.Port != test.port || config.Database != test.database {
				t.Errorf("host %q, port %d, database %q", config.Host, config.Port, config.Database)
			}
			if config.RuntimeParams["application_name"] != ApplicationName {
				t.Errorf("application_name %q", config.RuntimeParams["application_name"])
			}
		})
	}
}

// TestKeywordsNotSentToServer checks that libpq's own keywords are not sent as settings of the server.
func TestKeywordsNotSentToServer(t *testing.T) {
	clearEnvironment(t)
	harmless := map[string]string{
		"gssencmode": "disable", "replication": "false", "load_balance_hosts": "random", "hostaddr": "127.0.0.1",
		"port":    "5432",
		"sslmode": "disable", "sslnegotiation": "postgres", "sslcertmode": "allow", "ssl_min_protocol_version": "TLSv1.2",
		"ssl_max_protocol_version": "TLSv1.3", "channel_binding": "prefer", "target_session_attrs": "any",
		"require_auth": "scram-sha-256", "min_protocol_version": "3.0", "max_protocol_version": "latest",
	}
	for name, k := range keywords {
		if k.use == refused || name == "service" || name == "servicefile" {
			continue
		}
		value, ok := harmless[name]
		if !ok {
			value = "1"
		}
		for _, text := range []string{
			fmt.Sprintf("%s=%s", name, value), fmt.Sprintf("postgres://localhost/?%s=%s", name, value),
		} {
			config, _, err := parseConnString(origin{text: text})
			if name == "sslcert" || name == "sslkey" || name == "sslrootcert" {
				continue // there are no such files
			}
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			if _, sent := config.RuntimeParams[name]; sent && keywords[name].use != ignored && name != "options" {
				t.Errorf("%s: it is sent to the server", text)
			}
			for param := range config.RuntimeParams {
				if k, libpq := keywords[param]; libpq && param != "options" && k.use != ignored {
					t.Errorf("%s: %s is sent to the server", text, param)
				}
			}
			if err := CheckConnString(text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

func TestParseConnStringBad(t *testing.T) {
	clearEnvironment(t)
	bad := write(t, filepath.Join(t.TempDir(), "services"), "[main]\nhots=/service\n[nested]\nservice=main\n", 0o644)
	t.Setenv("PGSERVICEFILE", bad)
	for text, want := range map[string]string{
		"host": `missing "="`, "postgres://%zz": "percent", "port=x": "port", "host=h sslmode=perhaps": "sslmode",
		"service=nowhere": `definition of service "nowhere" not found`, "service=main": `invalid connection option "hots"`,
		"service=nested": "syntax error", "hots=x": `invalid connection option "hots"`,
		"search_path=x": `invalid connection option "search_path"`, "postgres://h/?a=b": `invalid connection option "a"`,
		"user='x": "unterminated", "gssencmode=require": "not supported", "gssencmode=x": "invalid gssencmode",
		"sslcrl=/x": "not supported", "replication=database": "not supported", "keepalives_idle=soon": "invalid integer",
		"hostaddr=db.example": "could not parse network address", "host=a,b hostaddr=127.0.0.1": "could not match",
		"oauth_client_secret=hidden": "not supported", "postgres://[::1/d": "IPv6", "ssl_min_protocol_version=2": "invalid",
	} {
		_, _, err := parseConnString(origin{text: text, cluster: &Cluster{SocketDir: "/s", Port: 1}})
		if !errors.Is(err, ErrConnString) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		} else if strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: the message shows a secret", text)
		}
		if _, err := NewConn(ConnOptions{ConnString: text}); err == nil {
			t.Errorf("NewConn accepts %q", text)
		}
	}
}

func TestHostaddrNotLookedUp(t *testing.T) {
	clearEnvironment(t)
	config, _, err := parseConnString(origin{text: "host=db.invalid,localhost hostaddr=127.0.0.9,127.0.0.8 port=1,2"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.LookupFunc(t.Context(), "db.invalid")
	if err != nil || !slices.Equal(got, []string{"127.0.0.9"}) || config.Host != "db.invalid" {
		t.Errorf("%s is at %q: %v", config.Host, got, err)
	}
}

func TestKeepAlive(t *testing.T) {
	for text, want := range map[string]string{
		"":             "{true -1ns -1ns -1}",
		"keepalives=0": "{false -1ns -1ns -1}",
		"keepalives_idle=30 keepalives_interval=5 keepalives_count=4": "{true 30s 5s 4}",
	} {
		s, err := parseText(text)
		if got := fmt.Sprint(s.keepAlive()); err != nil || got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func TestTLSVersions(t *testing.T) {
	clearEnvironment(t)
	config, _, err := parseConnString(origin{text: "host=h ssl_min_protocol_version=TLSv1.3"})
	if err != nil || config.TLSConfig.MinVersion != tls.VersionTLS13 {
		t.Errorf("%v, %v", config.TLSConfig, err)
	}
}

// TestPasswordFile checks libpq's rules: it ignores a file that others can read, and uses entries for localhost only
// with its default socket directories.
func TestPasswordFile(t *testing.T) {
	clearEnvironment(t)
	path := filepath.Join(t.TempDir(), "passwords")
	t.Setenv("PGPASSFILE", path)
	const content = "h:5432:*:u:tcp\nlocalhost:5432:d:u:local\n/sock:5432:d:u:socket\n@sock:5432:d:u:abstract\n" +
		"*:9:postgres:u:nine\n*:9:other:u:ten\n"
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"host":                      {"host=h user=u dbname=d", 0o600, "tcp"},
		"group may read":            {"host=h user=u dbname=d", 0o640, ""},
		"others may read":           {"host=h user=u dbname=d", 0o604, ""},
		"group may write":           {"host=h user=u dbname=d", 0o620, ""},
		"a socket":                  {"host=/sock user=u dbname=d", 0o600, "socket"},
		"another socket":            {"host=/other user=u dbname=d", 0o600, ""},
		"the default socket":        {"host=/tmp user=u dbname=d", 0o600, "local"},
		"an abstract socket":        {"host=@sock user=u dbname=d", 0o600, "abstract"},
		"a password is given":       {"host=h user=u password=x", 0o600, "x"},
		"given, and others may see": {"host=h user=u password=x", 0o644, "x"},
	} {
		write(t, path, content, test.mode)
		config, notes, err := parseConnString(origin{text: test.text})
		if err != nil || config.Password != test.want {
			t.Errorf("%s: %q, %v", name, config.Password, err)
		}
		warned := len(notes) == 1 && strings.Contains(notes[0], "group or world access")
		if warned != (test.mode != 0o600 && test.want == "") {
			t.Errorf("%s: %q", name, notes)
		}
	}
	write(t, path, content, 0o600)
	config, err := SessionConfig(ConnOptions{ConnString: "host=h port=9 user=u"}, "other")
	if err != nil || config.Password != "ten" {
		t.Errorf("another database's password is %q: %v", config.Password, err)
	}
}

func TestRequirePeer(t *testing.T) {
	clearEnvironment(t)
	path := filepath.Join(t.TempDir(), ".s.PGSQL.1")
	listenUnix(t, path)
	for _, test := range []struct{ name, want string }{{"nobody_at_all", "requirepeer specifies"}, {"", ""}} {
		text := "host=" + filepath.Dir(path) + " port=1 requirepeer='" + test.name + "'"
		config, _, err := parseConnString(origin{text: text})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := config.DialFunc(context.Background(), "unix", path)
		if err == nil {
			_ = conn.Close()
		}
		if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("requirepeer=%s: %v", test.name, err)
		}
	}
}

func FuzzParseText(f *testing.F) {
	for _, text := range []string{
		"host=a port=1", "postgres://u:p@h:1,[::1]:2/d?sslmode=disable", "user='a\\'b' x", "postgresql://%2f?", "a='",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseText(text)
		if err != nil && !errors.Is(err, ErrConnString) {
			t.Errorf("%q: %v", text, err)
		}
		for name := range s {
			if _, ok := keywords[name]; !ok {
				t.Errorf("%q has the keyword %q", text, name)
			}
		}
	})
}

func listenUnix(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

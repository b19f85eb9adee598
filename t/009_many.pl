# Many processes in one call: the view, frames as rows, several log entries, blockers, samples.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw($FRAME call children backend_pid wait_until);

my $node = PostgreSQL::Test::Cluster->new('many');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
logging_collector = on
log_directory = 'log'
log_min_messages = warning
autovacuum = off
max_prepared_transactions = 2
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION pg_stat_backtrace;
CREATE ROLE watcher LOGIN;
CREATE ROLE owner LOGIN;
CREATE ROLE heir LOGIN;
GRANT owner TO heir;
GRANT SELECT ON pg_stat_backtrace TO watcher, heir;
GRANT EXECUTE ON FUNCTION pg_get_backtrace_frames(int), pg_log_backtrace(int[]), pg_get_blocking_backtraces(int),
    pg_backtrace_summary(int, interval, int[]) TO heir;
CREATE TABLE t (a int);
INSERT INTO t VALUES (1);
GRANT ALL ON t TO owner, heir;
});
my $worker = Worker->start($node);
my ($out, $level, $state, $stderr);

# The view has a row for each child of the postmaster. Each has a stack except the calling backend. Autovacuum is off,
# so that no processes start or end meanwhile.
my $owner = $node->background_psql('postgres', extra_params => [ '-U', 'owner' ]);
my $owners = backend_pid($owner);
my (%children, @rows);
wait_until(
	'no process has come or gone meanwhile',
	sub {
		my %before = map { $_ => 1 } children($node->{_pid});
		@rows = split /\n/, $node->safe_psql('postgres',
			q{SELECT pid, pid = pg_backend_pid(), backend_type, engine IN ('stop', 'blocked'), (pause_us > 0) = (engine = 'stop'), depth = (length(backtrace) -
			  length(replace(backtrace, E'\n', ''))) + 1, backtrace ~ '^#0 ' AND backtrace !~ 'stack cut', error
			  FROM pg_stat_backtrace ORDER BY pid});
		my ($own) = map { /^(\d+)\|t\|/ } @rows;
		%children = map { $_ => 1 } grep { $_ != $own } children($node->{_pid});
		# A process that starts and ends in between is in neither list of children, but may be in the view.
		my @seen = sort grep { $_ != $own } map { /^(\d+)/ } @rows;
		return "@{[ sort keys %before ]}" eq "@{[ sort keys %children ]}" && "@seen" eq "@{[ sort keys %children ]}";
	});
my %listed;
for my $row (@rows)
{
	my ($pid, $own, @rest) = split /\|/, $row, -1;
	my $type = $rest[0];
	if ($own eq 't')
	{
		is("@rest[1 .. 4] $rest[5]", '    cannot capture the backtrace of the current backend', 'the asking backend');
		next;
	}
	$listed{$pid} = $type;
	is("@rest[1 .. 5]", 't t t t ', "the $type has its stack");
}
is_deeply([ sort keys %listed ], [ sort keys %children ], 'each process of the cluster has one row');
ok((grep { $_ eq 'logger' } values %listed), 'the logger is among them');
is(scalar(grep { $_ eq '' } values %listed), 0, 'each kind of process is known');

# The view shows the current state, also in a transaction with an older snapshot.
my $watched = $node->background_psql('postgres', on_error_stop => 0);
my $watched_pid = backend_pid($watched);
$watched->query_until(qr/started/, "\\echo started\nSELECT pg_sleep(1000);\n");
wait_until('the sleep',
	sub { $node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $watched_pid") eq 'PgSleep' });
is( $node->safe_psql(
		'postgres', qq{BEGIN READ ONLY; SELECT count(*) > 0 FROM pg_stat_activity;
		SELECT pg_cancel_backend($watched_pid);
		DO \$\$ BEGIN WHILE (SELECT wait_event <> 'ClientRead' FROM pg_stat_get_activity($watched_pid)) LOOP
			PERFORM pg_stat_clear_snapshot(); END LOOP; END \$\$;
		SELECT wait_event, state FROM pg_stat_backtrace WHERE pid = $watched_pid}),
	"t\nt\nClientRead|idle",
	'the wait event is of now');

# A role sees the stacks that it may see, and an error for the others.
$out = (call($node, "SELECT pid FROM pg_stat_backtrace WHERE backtrace IS NOT NULL", role => 'heir'))[0];
is($out, $owners, 'a member sees the stacks of the role alone');
is((call($node, 'SELECT count(backtrace) FROM pg_stat_backtrace', role => 'watcher'))[0], 0, 'who is nobody sees none');
like(
	(call($node, "SELECT error FROM pg_stat_backtrace WHERE pid = $owners", role => 'watcher'))[0],
	qr/^permission denied to get backtrace of process $owners$/,
	'and is told why');
($out, $level, $state) = call($node, 'SELECT * FROM pg_stat_backtrace', role => 'owner');
is("$level $state", 'ERROR 42501', 'the view takes the SELECT privilege');
($out, $level, $state) = call($node, 'SELECT * FROM backtrace.stat()', role => 'owner');
is("$level $state", 'ERROR 42501', 'and so does the function under it');
($out, $level, $state) = call($node, q{SELECT backtrace.ask(0, 'stat', '{}')}, role => 'owner');
is("$level $state", 'ERROR 42501', 'and the call under that');

# The rows of frames equal the lines of the text.
my $text = $node->safe_psql('postgres', "SELECT pg_get_backtrace($owners)");
my $made = $node->safe_psql(
	'postgres', qq{SELECT string_agg(format('#%s %s in %s+%s%s', level, address, coalesce(function, module), "offset",
		CASE WHEN function IS NOT NULL THEN format(' (%s)', module) END), E'\\n' ORDER BY level)
		FROM pg_get_backtrace_frames($owners)});
$text =~ s/^(#\d+) +/$1 /mg;
$text =~ s/ \[.*\]$//mg;
$text =~ s/ \S+:\d+$//mg;    # notes and lines have columns of their own
is($made, $text, 'rows and text say the same');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_get_backtrace_frames($owners) WHERE tid <> $owners OR
	build_id !~ '^[0-9a-f]{16,}' OR module_offset !~ '^0x' OR inlined"), 0, 'thread, build-id and offsets are there');
($out, $level, $state) = call($node, 'SELECT count(*) FROM pg_get_backtrace_frames(0)');
is("$out $level $state", '0 WARNING 01000', 'no process, no rows, a warning');
($out, $level, $state) = call($node, "SELECT * FROM pg_get_backtrace_frames($watched_pid)", role => 'heir');
is("$level $state", 'ERROR 42501', 'frames need the privileges of a backtrace');

# Several log entries.
my $log_start = -s current_logfile();
is($node->safe_psql('postgres', "SELECT pg_log_backtrace($owners, $watched_pid)"), 't', 'two entries');
for my $pid ($owners, $watched_pid)
{
	ok(wait_until("the entry of $pid", sub {
				slurp_file(current_logfile(), $log_start) =~ /LOG:\s+backtrace of PID $pid\n.*DETAIL:\s+#0 +0x/ }),
		"the entry of $pid");
}
($out, $level, $state, $stderr) = call($node, "SELECT pg_log_backtrace($owners, 1)");
is("$out $level $state", 'f WARNING 01000', 'one of them is no process: false, and a warning');
is((call($node, "SELECT pg_log_backtrace(VARIADIC ARRAY[$owners])"))[0], 't', 'an array');
($out, $level, $state) = call($node, "SELECT pg_log_backtrace($owners, $watched_pid)", role => 'heir');
is("$out $level $state", 'f WARNING 42501', 'what the role may not see is not logged');
my $many = join ',', 1 .. 5001;
($out, $level, $state) = call($node, "SELECT pg_log_backtrace(VARIADIC '{$many}'::int[])");
is("$level $state", 'ERROR 54000', 'too many processes');
$many = join ',', 1000001 .. 1005000;
is((call($node, "SELECT pg_log_backtrace(VARIADIC '{$many}'::int[])"))[0], 'f', 'as many as may be');

# Blockers: a chain of two, and a prepared transaction at its end.
$owner->query_safe('BEGIN; UPDATE t SET a = 2');
$watched = $node->background_psql('postgres');
$watched_pid = backend_pid($watched);
$watched->query_until(qr/started/, "\\echo started\nBEGIN; UPDATE t SET a = 3;\n");
my $blocked = sub { $node->safe_psql('postgres', "SELECT pg_blocking_pids($_[0])") ne '{}' };
wait_until('the second waits', sub { $blocked->($watched_pid) });
my $third = $node->background_psql('postgres');
my $third_pid = backend_pid($third);
$third->query_until(qr/started/, "\\echo started\nUPDATE t SET a = 4;\n");
wait_until('the third waits, behind the second', sub { $blocked->($third_pid) });
my $chain = sub {
	return $node->safe_psql('postgres',
		"SELECT distance, blocking_pid, wait_event_type, backtrace ~ '^#0 ', error FROM pg_get_blocking_backtraces($third_pid)");
};
is($chain->(), "0|$third_pid|Lock|t|\n1|$watched_pid|Lock|t|\n2|$owners|Client|t|", 'the chain of blockers');
$owner->query_safe(q{PREPARE TRANSACTION 'p'});
is($chain->(), "0|$third_pid|Lock|t|\n1|$watched_pid|Lock|t|\n2|0||f|a prepared transaction" =~ s/\|f\|a/||a/r,
	'a prepared transaction blocks');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});

# The parallel group, from one of its workers.
my $leader = $node->background_psql('postgres');
my $leader_pid = backend_pid($leader);
$leader->query_safe('CREATE TABLE big AS SELECT g FROM generate_series(1, 10000) g; ANALYZE big;
	CREATE FUNCTION nap(int) RETURNS int LANGUAGE sql PARALLEL SAFE COST 100000 AS $$ SELECT 1 FROM pg_sleep(10) $$');
$leader->query_until(qr/started/, "\\echo started\nSELECT count(nap(g)) FROM big;\n");
my $parallel;
wait_until('a parallel worker',
	sub { $parallel = $node->safe_psql('postgres', "SELECT max(pid) FROM pg_stat_activity WHERE leader_pid = $leader_pid") });
my $group;
# On a busy machine a process may not be stopped in time.
wait_until(
	'the stacks of the whole parallel group',
	sub {
		$group = $node->safe_psql('postgres',
			"SELECT string_agg(DISTINCT coalesce(leader_pid, blocking_pid)::text, ','), count(*) > 1, bool_and(backtrace IS NOT NULL)
			FROM pg_get_blocking_backtraces($parallel) WHERE distance = 0");
		return $group =~ /t$/;
	});
is($group, "$leader_pid|t|t", 'the whole parallel group');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($leader_pid)");

# Samples: shares, failures, progress, limits, cancel.
is( $node->safe_psql('postgres', "SELECT count, share, processes, some_pids, backtrace ~ '^epoll_wait|^__'
	FROM pg_backtrace_summary(4, '1 ms', ARRAY[$owners])"),
	"4|100.0|1|{$owners}|t", 'four equal stacks of an idle backend');
($out, undef, undef, $stderr) = call($node, "SELECT count(*) FROM pg_backtrace_summary(2, '0', ARRAY[$owners, 1])");
like($stderr, qr/NOTICE:.*2 of 4 stacks could not be taken.*DETAIL:\s+2 times: PID 1 is not/s, 'what could not be taken');
($out, undef, undef, $stderr) = call($node, "SELECT sum(count) >= 3 * 8 FROM pg_backtrace_summary(3, '1500 ms')");
is($out, 't', 'all processes');
like($stderr, qr/NOTICE:.*sample \d of 3/, 'progress is told');
for my $bad ("NULL", "1, '-1 s'", "1, NULL", "100001")
{
	($out, $level, $state) = call($node, "SELECT * FROM pg_backtrace_summary($bad)");
	is("$level $state", 'ERROR 22023', "pg_backtrace_summary($bad)");
}
($out, $level, $state) = call($node, "SET statement_timeout = '500ms'; SELECT * FROM pg_backtrace_summary(1000, '1 s')");
is("$level $state", 'ERROR 57014', 'it can be cancelled');
($out, $level, $state) = call($node, "SELECT * FROM pg_backtrace_summary()", role => 'owner');
is("$level $state", 'ERROR 42501', 'it takes the privilege');

# Settings.
for my $setting (
	[ 'threads', '2' ], [ 'nonstop', 'perhaps' ], [ 'context', 'o' ])
{
	my ($name, @bad) = @$setting;
	for my $value (@bad)
	{
		($out, $level, $state, $stderr) = call($node, "SET pg_stat_backtrace.$name = '$value'; SELECT * FROM pg_stat_backtrace");
		is("$level $state", 'ERROR 22023', "$name = $value is refused");
		like($stderr, qr/invalid value for parameter "pg_stat_backtrace.$name": "$value"/, 'by its name');
	}
}
is($node->safe_psql('postgres', "SET pg_stat_backtrace.max_frames = 2; SELECT max(depth) FROM pg_stat_backtrace"), 2,
	'max_frames holds for the view');

# Without a worker.
is($worker->stop, 0, 'the worker ends');
for my $call ('* FROM pg_stat_backtrace', "* FROM pg_get_backtrace_frames($owners)", 'pg_log_backtrace(1, 2)',
	"* FROM pg_get_blocking_backtraces($owners)", '* FROM pg_backtrace_summary()',
	'pg_backtrace_summary_text()')
{
	($out, $level, $state, $stderr) = call($node, "SELECT $call");
	is("$level $state", 'ERROR 55000', "SELECT $call without a worker");
	my @context = $stderr =~ /^CONTEXT:/mg;
	is(scalar @context, 1, 'one line of context') or diag($stderr);
}

sub current_logfile
{
	return $node->data_dir . '/' . ((split ' ', slurp_file($node->data_dir . '/current_logfiles'))[1]);
}

$_->{run}->kill_kill for ($third, $watched);
done_testing();

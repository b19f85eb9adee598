# Stacks of real processes: a waiting backend, and each kind of auxiliary process, on a primary and on a standby. The
# tests use only functions that PostgreSQL exports, because a stripped server has no other names.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw($FRAME call proc_status wait_until backend_pid children cmdline);

# backend_type => a function that must be in its stack. If a process's main function is static in some versions, its
# exported caller or callee is used.
my %function = (
	'archiver'                     => qr/PgArchiverMain/,
	'autovacuum launcher'          => qr/AutoVacLauncher/,
	'background writer'            => qr/BackgroundWriterMain/,
	'checkpointer'                 => qr/CheckpointerMain/,
	'io worker'                    => qr/IoWorkerMain/,
	'logical replication launcher' => qr/ApplyLauncherMain/,
	'slotsync worker'              => qr/ReplSlotSyncWorkerMain/,
	'startup'                      => qr/StartupProcessMain/,
	'walreceiver'                  => qr/WalReceiverMain/,
	'walsender'                    => qr/exec_replication_command/,
	'walsummarizer'                => qr/WalSummarizerMain/,
	'walwriter'                    => qr/WalWriterMain/,
	'logger'                       => qr/SysLogger/,
);

# every_frame_ok($text, $what): each line is a frame, or a note about the stack in brackets or parentheses.
sub every_frame_ok
{
	my ($text, $what) = @_;
	my @odd = grep { !/$FRAME/ && !/^[\[(]/ } split /\n/, $text;
	is(scalar @odd, 0, "$what: every line is a frame") or diag(join "\n", @odd);
	my @level = $text =~ /^#(\d+)/mg;
	is_deeply(\@level, [ 0 .. $#level ], "$what: frames are numbered from 0");
	return;
}

# check_auxiliaries($node, @types): each of these types runs, and the stack of each auxiliary process is correct. An autovacuum
# worker may end before its capture.
sub check_auxiliaries
{
	my ($node, @types) = @_;
	my $name = $node->name;
	for my $type (@types)
	{
		wait_until("the $type of $name",
			sub { $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = '$type'") > 0 });
	}
	my $rows = $node->safe_psql('postgres', q{
		SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type NOT IN ('client backend', 'autovacuum worker') ORDER BY 2, 1});
	for my $row (split /\n/, $rows)
	{
		my ($pid, $type) = split /\|/, $row;
		check_stack($node, $pid, $type, $function{$type} // qr/\w+Main/);
	}
	return;
}

sub check_stack
{
	my ($node, $pid, $type, $expected) = @_;
	my $what  = $node->name . " $type";
	my $stack = $node->safe_psql('postgres', "SELECT pg_get_backtrace($pid)");
	like($stack, qr/\bin\s+\S*$expected/, "$what: its function is there") or diag($stack);
	like($stack, qr/\bin\s+main\+|ServerLoop|PostmasterMain/, "$what: down to the postmaster's frames") or diag($stack);
	every_frame_ok($stack, $what);
	my %status = proc_status($pid);
	isnt($status{State}, 'T', "$what: not stopped afterwards");
	is($status{TracerPid}, 0, "$what: not traced afterwards");
	return;
}

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 'logical', has_archiving => 1);
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');

# A standby made from the files of the stopped primary: needs no pg_basebackup of the server's own version.
$primary->stop;
$primary->backup_fs_cold('cold');
$primary->start;
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'cold', has_streaming => 1);
$standby->start;

my $worker         = Worker->start($primary);
my $standby_worker = Worker->start($standby);

# A backend that waits for a lock inside a function.
$primary->safe_psql(
	'postgres', q{
CREATE TABLE t (a int PRIMARY KEY, b int);
INSERT INTO t VALUES (1, 1);
CREATE FUNCTION inner_update() RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE t SET b = b + 1 WHERE a = 1; END';
CREATE FUNCTION outer_update() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM inner_update(); END';
});
my $holder = $primary->background_psql('postgres');
$holder->query('BEGIN; UPDATE t SET b = 0');
my $waiter = $primary->background_psql('postgres');
my $pid    = backend_pid($waiter);
$waiter->query_until(qr/started/, "\\echo started\nSELECT outer_update();\n");
$primary->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid")
  or die 'the backend does not wait';

my $stack = $primary->safe_psql('postgres', "SELECT pg_get_backtrace($pid)");
every_frame_ok($stack, 'a waiting backend');
like($stack, qr/(?:plpgsql_call_handler|plpgsql\.so\+0x)/, 'the functions are PL/pgSQL');
for my $name (qw(WaitLatch ProcSleep XactLockTableWait standard_ExecutorRun PostgresMain main))
{
	like($stack, qr/\bin\s+$name\+0x/, "a waiting backend: $name") or diag($stack);
}
my ($wait, $run, $main) = map { index $stack, " in $_+" } qw(WaitLatch standard_ExecutorRun PostgresMain);
ok($wait < $run && $run < $main, 'innermost first');
is(() = $stack =~ /\bin\s+standard_ExecutorRun\+/g, 3, 'the statement, the outer and the inner function: three executors');

# The log: a banner, and the frames in the DETAIL.
my $offset = -s $primary->logfile;
is($primary->safe_psql('postgres', "SELECT pg_log_backtrace($pid)"), 't', 'pg_log_backtrace returns true');
my $log = substr slurp_file($primary->logfile), $offset;
is(() = $log =~ /LOG:\s+backtrace of PID $pid\b/g, 1, 'one LOG entry with the pid');
like($log, qr/DETAIL:\s+#0\s+0x[0-9a-f]{16}\s+in\s.*ProcSleep\+0x/s, 'the frames are in its DETAIL');

# A client's client_min_messages changes nothing in the server's log.
$offset = -s $primary->logfile;
$primary->safe_psql('postgres', "SET client_min_messages = error; SELECT pg_log_backtrace($pid)");
like(substr(slurp_file($primary->logfile), $offset), qr/LOG:\s+backtrace of PID $pid$/m, 'whatever client_min_messages is');

# The backend still waits for the lock, so the capture has changed nothing.
is($primary->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid"), 'Lock',
	'the backend still waits');
$holder->query('COMMIT');
like($waiter->query('SELECT b FROM t'), qr/^1$/m, 'and goes on when the lock is free');
$holder->quit;

# A deep recursion: the stack is cut at the frame limit, and the answer stays small.
$primary->safe_psql(
	'postgres', q{
CREATE FUNCTION deep(n int) RETURNS void LANGUAGE plpgsql AS
'BEGIN IF n > 0 THEN PERFORM deep(n - 1); ELSE PERFORM pg_advisory_lock(42); END IF; END'});
my $guard = $primary->background_psql('postgres');
$guard->query('SELECT pg_advisory_lock(42)');
my $digger = $primary->background_psql('postgres');
$pid = backend_pid($digger);
$digger->query_until(qr/started/, "\\echo started\nSELECT deep(100);\n");
$primary->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid")
  or die 'the backend does not wait';
$stack = $primary->safe_psql('postgres', "SELECT pg_get_backtrace($pid)");
my @frames = $stack =~ /^(#\d+)/mg;
is(scalar @frames, 256, 'a deep stack: 256 frames');
cmp_ok(length $stack, '<', 64 * 1024, 'a deep stack: less than 64 KiB');
$guard->query('SELECT pg_advisory_unlock(42)');
$guard->quit;

# Every auxiliary process of a primary and of a standby, each by its cluster's worker.
$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
  or die 'no standby';
check_auxiliaries($primary, 'archiver', 'autovacuum launcher', 'background writer', 'checkpointer',
	'logical replication launcher', 'walsender', 'walwriter');
$primary->wait_for_catchup($standby);
check_auxiliaries($standby, 'background writer', 'checkpointer', 'startup', 'walreceiver');

# On a standby, a backend too: there is no transaction id and no table to write.
my $reader = $standby->background_psql('postgres');
like($standby->safe_psql('postgres', 'SELECT pg_get_backtrace(' . backend_pid($reader) . ')'),
	qr/\bin\s+PostgresMain\+/, "a standby's backend");
$reader->quit;

# The logger has no row in pg_stat_activity, but is a child of the postmaster like the others.
my $logging = PostgreSQL::Test::Cluster->new('logging');
$logging->init;
$logging->append_conf('postgresql.conf', 'logging_collector = on');
$logging->start;
$logging->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');
my $logging_worker = Worker->start($logging);
my ($logger) = grep { cmdline($_) =~ /logger/ } children($logging->{_pid});
ok($logger, 'there is a logger') and check_stack($logging, $logger, 'logger', $function{logger});

$_->quit for $waiter, $digger;
$_->stop for $worker, $standby_worker, $logging_worker;
$_->stop for $standby, $primary, $logging;
done_testing();

# Every caller of the permission table against every target in it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw($FRAME call children backend_pid wait_until);

my $node = PostgreSQL::Test::Cluster->new('permission');
$node->init;
# A slow autovacuum worker, so that there is one to capture.
$node->append_conf(
	'postgresql.conf', q{
autovacuum_naptime = 1s
autovacuum_vacuum_cost_limit = 1
autovacuum_vacuum_cost_delay = 100ms
autovacuum_vacuum_threshold = 1
log_autovacuum_min_duration = -1
authentication_timeout = 600   # one backend does not authenticate, and is to be looked at
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION pg_stat_backtrace;
CREATE ROLE owner LOGIN;                 -- whose backends are looked at
CREATE ROLE stranger LOGIN;              -- granted EXECUTE, and no more
CREATE ROLE heir LOGIN;                  -- has the privileges of owner
CREATE ROLE settable LOGIN NOINHERIT;    -- may become owner, has not its privileges
CREATE ROLE ungranted LOGIN;             -- no EXECUTE
CREATE ROLE boss LOGIN SUPERUSER;
GRANT owner TO heir, settable;
GRANT EXECUTE ON FUNCTION pg_get_backtrace(int), pg_log_backtrace(int) TO owner, stranger, heir, settable;
});
my $worker = Worker->start($node);

my %session = map { $_ => $node->background_psql('postgres', extra_params => [ '-U', $_ ]) } qw(owner stranger boss);
my %target  = map { ("a backend of $_" => backend_pid($session{$_})) } keys %session;

sub pid_of
{
	my ($type) = @_;
	return $node->safe_psql('postgres', "SELECT min(pid) FROM pg_stat_activity WHERE backend_type = '$type'");
}
$target{"the $_"} = pid_of($_) for ('checkpointer', 'background writer', 'walwriter', 'autovacuum launcher',
	'logical replication launcher');

# A backend that has not authenticated: a connection that has sent nothing. It is a new child of the postmaster, found
# twice, and not an autovacuum worker that starts at the same time.
my %seen   = map { $_ => 2 } children($node->{_pid});
my $silent = $node->raw_connect;
wait_until(
	'an unauthenticated backend',
	sub {
		my @new = grep { title($_) !~ /^$|autovacuum/ && ++$seen{$_} == 2 } children($node->{_pid});
		return ($target{'an unauthenticated backend'}) = @new;
	});

# title($pid) returns the process's title. It is empty if the process has ended.
sub title
{
	my ($pid) = @_;
	open my $fh, '<', "/proc/$pid/cmdline" or return '';
	return <$fh> // '';
}

# An autovacuum worker.
$node->safe_psql('postgres', 'CREATE TABLE t AS SELECT g FROM generate_series(1, 200000) g; DELETE FROM t;');
wait_until('an autovacuum worker', sub { $target{'an autovacuum worker'} = pid_of('autovacuum worker') });

# Expected result by caller. All combinations that are missing here are refused.
my %allowed = (
	stranger => { 'a backend of stranger' => 1 },
	owner    => { 'a backend of owner'    => 1 },
	heir     => { 'a backend of owner'    => 1 },
	settable => {},
	ungranted => {},
	boss     => { map { $_ => 1 } keys %target },
);

# ask lets a role request a target. If an autovacuum worker has ended, the next one is the target.
sub ask
{
	my ($caller, $name) = @_;
	my @answer;
	wait_until(
		"an answer about $name",
		sub {
			@answer = call($node, "SELECT pg_get_backtrace($target{$name})", role => $caller);
			return 1 if $name ne 'an autovacuum worker' || $answer[1] ne 'WARNING';
			$target{$name} = pid_of('autovacuum worker') || $target{$name};
			return 0;
		});
	return @answer;
}

for my $caller (sort keys %allowed)
{
	for my $name (sort keys %target)
	{
		my ($out, $level, $state, $stderr) = ask($caller, $name);
		if ($allowed{$caller}{$name})
		{
			like($out, $FRAME, "$caller may look at $name") or diag($stderr);
		}
		else
		{
			is("$out$level $state", 'ERROR 42501', "$caller may not look at $name") or diag($stderr);
		}
	}
}

# The same decision for the log.
my ($out, $level, $state) = call($node, "SELECT pg_log_backtrace($target{'a backend of owner'})", role => 'heir');
is($out, 't', 'pg_log_backtrace: heir may');
(undef, $level, $state) = call($node, "SELECT pg_log_backtrace($target{'a backend of boss'})", role => 'heir');
is("$level $state", 'ERROR 42501', 'pg_log_backtrace: heir may not log a superuser');

# The current_user at the time of the call counts.
my $owners = $target{'a backend of owner'};
($out) = call($node, "SET ROLE owner; SELECT pg_get_backtrace($owners)", role => 'settable');
like($out, $FRAME, 'SET ROLE to the owner: yes');
(undef, $level, $state) = call($node, "SET ROLE stranger; SELECT pg_get_backtrace($owners)", role => 'boss');
is("$level $state", 'ERROR 42501', 'a superuser who has SET ROLE stranger: no');
(undef, $level, $state) = call($node, "SET ROLE ungranted; SELECT pg_get_backtrace($owners)", role => 'boss');
is("$level $state", 'ERROR 42501', 'a superuser who has SET ROLE to a role without EXECUTE: no');

# A SECURITY DEFINER function gives its callers its owner's rights, and no others.
$node->safe_psql(
	'postgres', q{
CREATE FUNCTION wrapped(pid int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT pg_get_backtrace(pid)';
CREATE FUNCTION wrapped_stranger(pid int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT pg_get_backtrace(pid)';
ALTER FUNCTION wrapped(int) OWNER TO boss;
ALTER FUNCTION wrapped_stranger(int) OWNER TO stranger;
});
($out) = call($node, "SELECT wrapped($owners)", role => 'ungranted');
like($out, $FRAME, "a superuser's SECURITY DEFINER wrapper: yes");
(undef, $level, $state) = call($node, "SELECT wrapped_stranger($owners)", role => 'boss');
is("$level $state", 'ERROR 42501', "a stranger's SECURITY DEFINER wrapper, called by a superuser: no");

# Rights are read from the current state, not from the caller's snapshot.
(undef, $level, $state) = call(
	$node,
	"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_stat_activity;"
	  . " SELECT pg_get_backtrace($owners); COMMIT",
	role => 'heir');
is($level, '', 'heir may, inside a repeatable-read transaction');
$node->safe_psql('postgres', 'REVOKE owner FROM heir');
(undef, $level, $state) = call($node, "SELECT pg_get_backtrace($owners)", role => 'heir');
is("$level $state", 'ERROR 42501', 'after REVOKE heir may no more');

# A role whose permission must be checked gets an answer soon after the worker's start, before the worker's session in
# the server exists. It also does so after that session was ended, and after a restart of the server.
sub checked
{
	my ($what) = @_;
	my $own = $node->background_psql('postgres', extra_params => [ '-U', 'owner' ]);
	my $pid = backend_pid($own);
	my ($got, undef, undef, $stderr) = call($node, "SELECT pg_get_backtrace($pid)", role => 'owner');
	like($got, $FRAME, "$what: the owner is answered") or diag($stderr . $worker->log);
	$own->quit;
	return;
}
for my $round (1 .. 3)
{
	$worker->stop;
	$worker = Worker->start($node);
	checked("a new worker, round $round");
}
for my $round (1 .. 3)
{
	my $ended = $node->safe_psql('postgres',
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pg_stat_backtrace'");
	cmp_ok($ended, '>', 0, "the worker's sessions are ended, round $round");
	checked("the worker's session was ended, round $round");
}

close $silent;
$_->quit for values %session;
$node->restart;
checked('the server was restarted');
$worker->stop;
$node->stop('immediate');
done_testing();

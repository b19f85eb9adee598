-- What the tests of PL/pgSQL levels run: every kind of statement that can take long, nested in each other.

CREATE TABLE rows_seen (n int PRIMARY KEY, txt text);
CREATE TABLE watched (n int, txt text);
INSERT INTO watched SELECT g, 'row ' || g FROM generate_series(1, 3000) g;
CREATE TABLE vacuumed (n int PRIMARY KEY, txt text) WITH (fillfactor = 50);
INSERT INTO vacuumed SELECT g * 1000, repeat('x', 300) FROM generate_series(1, 150) g;
CREATE TABLE indexed (n int PRIMARY KEY, a text, b text);
INSERT INTO indexed SELECT g * 1000, g, g % 7 FROM generate_series(1, 500) g;
CREATE INDEX ON indexed (a);
CREATE INDEX ON indexed (b, n);
CREATE TABLE held (n int PRIMARY KEY, txt text);
INSERT INTO held VALUES (1, 'one');
CREATE SCHEMA "Other Schema";

-- busy waits, or works, for a few milliseconds, by its argument.
CREATE FUNCTION busy(n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  x int := 0;
BEGIN
  IF n % 3 = 0 THEN
    PERFORM pg_sleep(0.001);
  ELSIF n % 3 = 1 THEN
    SELECT count(*) INTO x FROM generate_series(1, 15000);
  ELSE
    FOR i IN 1..15000 LOOP
      x := x + i % 7;
    END LOOP;
  END IF;
  RETURN x;
END
$$;

CREATE FUNCTION sql_two(n int) RETURNS int LANGUAGE sql AS $$
  SELECT 1;
  SELECT busy(n) + busy(0);
$$;

CREATE FUNCTION "Other Schema"."Löwe ""x""(,"(a numeric(5,2), VARIADIC b text[]) RETURNS SETOF int
LANGUAGE plpgsql AS $$
BEGIN
  RETURN NEXT busy(0);
  RETURN QUERY SELECT busy(g) FROM generate_series(0, 3) g;
  RETURN;
END
$$;

CREATE FUNCTION catches(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  BEGIN
    PERFORM 1 / 0;
  EXCEPTION WHEN division_by_zero THEN
    PERFORM busy(n);
    BEGIN
      RAISE EXCEPTION 'again %', busy(n + 1);
    EXCEPTION WHEN raise_exception THEN
      PERFORM sql_two(0);
    END;
  END;
  RETURN n;
END
$$;

CREATE FUNCTION loops(n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  i int;
  r record;
  c CURSOR FOR SELECT busy(g) AS b FROM generate_series(0, 3) g;
  d refcursor;
  a int := busy(0);
BEGIN
  WHILE busy(n) < 0 OR a < 2 LOOP
    a := coalesce(a, 0) + 1 + 0 * busy(a);
  END LOOP;
  LOOP
    EXIT WHEN busy(0) >= 0;
  END LOOP;
  FOR i IN busy(0)..busy(0) + 2 LOOP
    CONTINUE WHEN busy(i) < 0;
  END LOOP;
  FOR r IN SELECT busy(g) AS b FROM generate_series(0, 3) g LOOP
    PERFORM busy(r.b % 3);
  END LOOP;
  FOR r IN EXECUTE 'SELECT busy($1) AS b' USING n LOOP
    CASE busy(0) WHEN 0 THEN a := 1; ELSE a := 2; END CASE;
  END LOOP;
  FOR r IN c LOOP
    ASSERT busy(0) >= 0;
  END LOOP;
  FOREACH i IN ARRAY ARRAY[0, 1, busy(0)] LOOP
    PERFORM busy(i);
  END LOOP;
  OPEN d FOR SELECT busy(g) FROM generate_series(0, 3) g;
  FETCH d INTO i;
  MOVE d;
  CLOSE d;
  EXECUTE format('SELECT busy(%s) /* %s */', n % 3, repeat('x', n % 50)) INTO i;
  GET DIAGNOSTICS a = ROW_COUNT;
  RETURN busy(a);
END
$$;

CREATE FUNCTION on_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM busy(NEW.n);
  NEW.txt := 'n ' || busy(NEW.n + 1);
  RETURN NEW;
END
$$;
CREATE TRIGGER on_row BEFORE INSERT OR UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION on_row();

CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM busy(n);
  CALL steps_inner(n);
END
$$;
CREATE PROCEDURE steps_inner(n int) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM catches(n);
  DO 'BEGIN PERFORM busy(0); END';
END
$$;

CREATE FUNCTION descend(depth int, n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  IF depth = 0 THEN
    RETURN busy(n);
  END IF;
  RETURN descend(depth - 1, n) + 1;
END
$$;

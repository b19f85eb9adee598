// A program with generic functions, closures, trait objects and a standard library that comes with debug information.
use std::collections::HashMap;

trait Shape {
    fn area(&self) -> f64;
}
struct Square(f64);
struct Circle(f64);
impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}
impl Shape for Circle {
    fn area(&self) -> f64 {
        self.0 * self.0 * 3.14
    }
}

fn main() {
    let mut m: HashMap<String, Vec<Box<dyn Shape>>> = HashMap::new();
    for a in std::env::args() {
        let n = a.len() as f64;
        let shape: Box<dyn Shape> = if a.len() % 2 == 0 { Box::new(Square(n)) } else { Box::new(Circle(2.0)) };
        m.entry(a.clone()).or_default().push(shape);
    }
    let total: f64 = m.values().flat_map(|v| v.iter().map(|s| s.area())).sum();
    println!("{} {:?}", total, m.keys().collect::<Vec<_>>());
}

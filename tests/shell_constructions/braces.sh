python3 {a,b}c x{1..3} 'q{1,2}' l=[a,{b}] {a: 1}

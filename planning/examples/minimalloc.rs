//! x
use std::collections::HashMap;
use millpond_planning::*;
use std::time::*;
fn rmm(f:&str)->Problem{
 let out=std::process::Command::new("zcat").arg(f).output().unwrap().stdout;
 let text=String::from_utf8(out).unwrap();
 let mut live:HashMap<String,usize>=HashMap::new(); let mut blocks:Vec<Block>=vec![]; let mut n=0;
 for (i,l) in text.lines().skip(1).enumerate(){
  let v:Vec<&str>=l.split(',').collect(); n=i as u64;
  let s=u64::from_str_radix(v[5].trim_start_matches("0x"),16).unwrap();
  if v[2]=="allocate"{ live.insert(v[3].into(),blocks.len()); blocks.push(Block{birth:n,death:u64::MAX,size:v[4].parse().unwrap(),stream:s}); }
  else if v[2]=="free" { if let Some(b)=live.remove(v[3]){blocks[b].death=n;} }
 }
 for b in &mut blocks{ if b.death==u64::MAX{b.death=n+1;} }
 if std::env::var("SAFE").is_ok(){return Problem::stream_safe(blocks,512,vec![]).unwrap();}
 Problem::new(blocks,512).unwrap()
}
fn main(){
 let secs:u64=std::env::args().nth(1).unwrap().parse().unwrap();
 let mut o=Options{time:Duration::from_secs(secs),..Options::default()};
 for f in std::env::args().skip(2){
  if f.starts_with("seed="){o.seed=f[5..].parse().unwrap();continue;}
  let p=if f.ends_with("gz"){ rmm(&f)} else{
  let csv=millpond_planning::MinimallocCsv::parse(&std::fs::read_to_string(&f).unwrap()).unwrap();csv.problem().unwrap()};
  let t=Instant::now();
  let r=plan(&p,&o);
  let dt=t.elapsed().as_secs_f64();
  println!("{f} n {} bound {} height {} ratio {:.5} {dt:.2}s {:?} hard {:.3}",p.blocks().len(),r.bound,r.height,r.ratio(),validate(&p,&r.offsets),r.bounds.hardness());
  if f.contains("mm_"){
  let t=Instant::now();
  let r=fits(&p,1048576,&o);
  let dt=t.elapsed().as_secs_f64();
  println!("   fits {dt:.2}s {}",match r{Fit::Fits(_)=>"fits",Fit::Unknown(_)=>"unknown",_=>"impossible"});}
 }
}
